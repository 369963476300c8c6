"""What takes images, audio and video."""

from __future__ import annotations

import msgspec

from lsv.request.media import Modality


class ProcessorOffer(msgspec.Struct, frozen=True):
    """How a family's architectures take media; see ``lsv.media.processor``."""

    name: str
    architectures: tuple[str, ...]
    modalities: tuple[Modality, ...]
    load: str
    """Makes the part that prepares media."""
    place: str
    """Makes the part that places them in prompts; imported where prompts are made, so it must be light."""
    transcribe: str | None = None
    """Of families that transcribe speech, see ``lsv.media.transcriber``; light as well."""
    adapts: bool = False
    """Whether it serves every model that runs another library's code, takes media and has no processor of its own."""


class MediaOffer(msgspec.Struct, frozen=True):
    """What fetches and decodes the media of requests, for models of every family; see ``lsv.media.service``."""

    name: str
    load: str
    """Names a ``(config, catalog, options) -> MediaService``, made where ``lsv serve`` runs; light to import."""
    offline: str
    """Names a ``(config, catalog, options) -> OfflineMedia``, made by ``LLM`` at the first prompt with media."""
