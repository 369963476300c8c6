"""What an operator allows of media, as one frozen record. Sizes in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import msgspec

from lsv.errors import BadRequest, ConfigError
from lsv.processes.confinement.terms import Mode
from lsv.request.media import Modality

MODALITIES: tuple[Modality, ...] = get_args(Modality)

PER_PROMPT = 16
"""Items of a modality that a prompt may hold unless ``--limit-mm-per-prompt`` says otherwise."""


ENCODED_ITEMS = 4
"""Encoded, the items of a request together may have the bytes of this many of the largest items."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What an item may measure; checked before it is decoded wherever its container tells."""

    bytes: int = 64 << 20
    """Of the encoded item."""
    pixels: int = 64_000_000
    """Of an image, or of a frame of a video."""
    seconds: float = 3600.0
    """Of audio or video."""
    frames: int = 768
    """Taken from a video."""
    decoded: int = 512 << 20
    """Bytes of an item once it is decoded, and of all items of a request together."""
    memory: int = 2 << 30
    """Bytes that decoding and processing an item may take."""


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings of media say."""

    per_prompt: Mapping[str, int] = {}
    """Items of a modality that a prompt may hold, see ``allowed``."""
    processor: Mapping[str, Any] = {}
    """Options of the model's processor for all requests."""
    folder: str | None = None
    """The only folder that ``file:`` URLs may read from; None forbids them."""
    domains: tuple[str, ...] = ()
    """Hosts that media may be fetched from: names, ``*.example.com`` for all below one, ``*`` for any public host."""
    fetch_seconds: Mapping[str, float] = MappingProxyType({"image": 5.0, "audio": 10.0, "video": 30.0})
    """How long fetching an item may take, by modality."""
    prepare_seconds: float = 30.0
    """How long decoding and processing an item may take."""
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
            per_prompt=_read_counts(settings["limit_mm_per_prompt"] or {}),
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
                    f"a prompt may hold {most} items of kind {modality}, got {count}; "
                    "the server's --limit-mm-per-prompt says how many",
                    param="messages",
                )


def check_encoded(size: int, limits: Limits) -> None:
    """Raises ``BadRequest`` for more bytes of media than a request may bring or name."""
    most = ENCODED_ITEMS * limits.bytes
    if size > most:
        raise BadRequest(
            f"the media have {size / (1 << 20):.0f} MiB before they are decoded, over the limit of "
            f"{most / (1 << 20):g}, {ENCODED_ITEMS} times --max-media-mb: send fewer or smaller ones"
        )


def check_decoded(size: int, limits: Limits) -> None:
    """Raises ``BadRequest`` for more bytes of decoded media than a request may have."""
    if size > limits.decoded:
        raise BadRequest(
            f"the media have {size / (1 << 20):.0f} MiB once they are decoded, over the limit of "
            f"{limits.decoded / (1 << 20):g} (--max-decoded-mb): send fewer or smaller ones"
        )


def _mebibytes(value: float) -> int:
    return int(value * (1 << 20))


def _read_counts(given: Mapping[str, int]) -> dict[str, int]:
    for name in given:
        if name not in MODALITIES:
            raise ConfigError(
                f"limit_mm_per_prompt: there is no kind of media {name!r}; it is one of {', '.join(MODALITIES)}",
                param="limit_mm_per_prompt",
            )
    return dict(given)
