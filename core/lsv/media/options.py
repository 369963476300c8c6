"""What an operator allows of media, as one frozen record. Sizes in bytes, times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import msgspec

from lsv.errors import BadRequest, ConfigError
from lsv.request.media import Modality

MODALITIES: tuple[Modality, ...] = get_args(Modality)

SAMPLING = ("fps", "num_frames")
"""Options that say which frames of a clip are taken; the processor does not see them."""

PER_PROMPT = 16
"""Items of a modality that a prompt may hold unless ``--limit-mm-per-prompt`` says otherwise."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What an item may measure; checked before it is decoded wherever its container tells.

    ``pixels`` of a picture or frame, ``seconds`` of a sound or clip, ``frames`` taken from a clip, ``decoded`` bytes
    of what comes out.
    """

    bytes: int = 64 << 20
    pixels: int = 64_000_000
    seconds: float = 3600.0
    frames: int = 768
    decoded: int = 512 << 20


class MediaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``per_prompt`` counts items by modality; ``processor`` are the processor's options for all requests.

    ``folder`` is the only one that ``file:`` URLs may read from, None forbids them. ``domains`` are the hosts media are
    fetched from: names, ``*.example.com`` for all below it, ``*`` for any public one. ``fetch_seconds`` limit a fetch,
    ``side_seconds`` decoding and preparing an item.
    """

    per_prompt: Mapping[str, int] = {}
    processor: Mapping[str, Any] = {}
    folder: str | None = None
    domains: tuple[str, ...] = ()
    fetch_seconds: Mapping[str, float] = MappingProxyType({"image": 5.0, "audio": 5.0, "video": 10.0})
    side_seconds: float = 30.0
    limits: Limits = Limits()

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> MediaOptions:
        """Raises ``ConfigError`` for limits of unknown modalities and a folder that is none."""
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
            side_seconds=settings["media_timeout"],
            limits=Limits(bytes=int(settings["max_media_mb"] * (1 << 20))),
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


def _read_counts(given: Mapping[str, int]) -> dict[str, int]:
    for name in given:
        if name not in MODALITIES:
            raise ConfigError(
                f"limit_mm_per_prompt: there is no kind of media {name!r}; it is one of {', '.join(MODALITIES)}",
                param="limit_mm_per_prompt",
            )
    return dict(given)
