"""The operator's limits and options for media. Sizes are in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import msgspec

from lsv.request.media import Modality
from lsv_base.errors import BadRequest, ConfigError
from lsv_base.processes.confinement.terms import Mode

MODALITIES: tuple[Modality, ...] = get_args(Modality)

PER_PROMPT = 16
"""Default of ``--limit-mm-per-prompt``: items of one modality in a prompt."""

ENCODED_ITEMS = 4
"""Limit on the encoded bytes of a request, in multiples of the limit for one item."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Size limits of an item, checked before decoding if the container declares its size."""

    bytes: int = 64 << 20
    """Bytes of the encoded item."""
    pixels: int = 64_000_000
    """Pixels of an image, or of a frame of a video."""
    seconds: float = 3600.0
    """Duration of audio or video."""
    frames: int = 768
    """Frames sampled from a video."""
    decoded: int = 512 << 20
    """Bytes of a decoded item, and of all decoded items of a request together."""
    memory: int = 2 << 30
    """Bytes of memory for decoding and processing an item."""


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of media."""

    per_prompt: Mapping[str, int] = {}
    """Limits on items of a modality in a prompt, see ``allowed``."""
    processor: Mapping[str, Any] = {}
    """Options of the model's processor for all requests."""
    folder: str | None = None
    """The only folder that ``file:`` URLs may read from; None forbids them."""
    domains: tuple[str, ...] = ()
    """Hosts that media may be fetched from: names and addresses, which may be private, ``*.example.com`` for all public
    ones below a name, ``*`` for any public host."""
    fetch_seconds: Mapping[str, float] = MappingProxyType({"image": 5.0, "audio": 10.0, "video": 30.0})
    """Time limit for fetching an item, by modality."""
    prepare_seconds: float = 30.0
    """Time limit for decoding and processing an item."""
    confinement: Mode = "auto"
    """How the processes that decode are confined."""
    limits: Limits = Limits()

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> MediaOptions:
        """Raises ``ConfigError`` for limits of unknown modalities and a folder that does not exist."""
        folder = settings["allowed_local_media_path"]
        if folder and not Path(folder).is_dir():
            raise ConfigError(f"allowed_local_media_path: {folder} is not a folder", param="allowed_local_media_path")
        if not isinstance(settings["mm_processor_kwargs"] or {}, Mapping):
            raise ConfigError("mm_processor_kwargs must be a JSON object", param="mm_processor_kwargs")
        return cls(
            per_prompt=_read_counts(settings),
            processor=dict(settings["mm_processor_kwargs"] or {}),
            folder=folder or None,
            domains=tuple(domain.lower() for domain in settings["allowed_media_domains"]),
            fetch_seconds={modality: settings[f"{modality}_fetch_timeout"] for modality in MODALITIES},
            prepare_seconds=settings["media_timeout"],
            confinement=settings["confinement"],
            limits=Limits(
                bytes=_mebibytes(settings["max_media_mb"]),
                pixels=settings["max_image_pixels"],
                seconds=settings["max_media_seconds"],
                frames=settings["max_video_frames"],
                decoded=_mebibytes(settings["max_decoded_mb"]),
                memory=_mebibytes(settings["media_memory_mb"]),
            ),
        )

    def allowed(self, modality: Modality) -> int:
        """How many items of a modality a prompt may hold."""
        return self.per_prompt.get(modality, PER_PROMPT)

    def check_counts(self, items: list[Modality]) -> None:
        """Raises ``BadRequest`` for more items of a modality than a prompt may hold."""
        for modality in MODALITIES:
            count, most = items.count(modality), self.allowed(modality)
            if count > most:
                raise BadRequest(
                    f"a prompt may hold {most} items of kind {modality}, got {count} (--limit-mm-per-prompt)",
                    param="messages",
                )


def check_encoded(size: int, limits: Limits) -> None:
    """Raises ``BadRequest`` if the encoded media of a request are too large in all."""
    most = ENCODED_ITEMS * limits.bytes
    if size > most:
        raise BadRequest(
            f"the encoded media have {size / (1 << 20):.0f} MiB, over the limit of {most / (1 << 20):g} MiB "
            f"({ENCODED_ITEMS} times --max-media-mb): send fewer or smaller items"
        )


def check_decoded(size: int, limits: Limits) -> None:
    """Raises ``BadRequest`` if the decoded media of a request are too large in all."""
    if size > limits.decoded:
        raise BadRequest(
            f"the decoded media have {size / (1 << 20):.0f} MiB, over the limit of {limits.decoded / (1 << 20):g} MiB "
            "(--max-decoded-mb): send fewer or smaller items"
        )


def _mebibytes(value: float) -> int:
    return int(value * (1 << 20))


def _read_counts(settings: Mapping[str, Any]) -> dict[str, int]:
    given = settings["limit_mm_per_prompt"] or {}
    for name in given:
        if name not in MODALITIES:
            raise ConfigError(
                f"limit_mm_per_prompt: unknown kind of media {name!r}; expected one of {', '.join(MODALITIES)}",
                param="limit_mm_per_prompt",
            )
    return dict.fromkeys(MODALITIES, 0) if settings["language_model_only"] else dict(given)
