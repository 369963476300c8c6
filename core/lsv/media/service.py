"""The interfaces of media services, which fetch and decode media: one for servers, one for ``LLM``.

Plugins offer both (``lsv_media``); core decodes nothing itself. Neither is imported for a text-only model.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any, Protocol

from lsv.config import EngineConfig
from lsv.media.content_parts import Reference
from lsv.media.families import has_processor, text_only
from lsv.media.items import AudioChunk, Encoded, Prepared
from lsv.media.options import MediaOptions
from lsv.media.transcriber import Transcriber
from lsv.offers import MediaOffer, ModelOffer
from lsv.plugins.catalog import Catalog
from lsv.request.media import Modality
from lsv.request.prompt import Prompt
from lsv_base.errors import ConfigError, PluginError
from lsv_base.processes.side.turns import NOBODY, Owner


class MediaService(Protocol):
    """Prepares the media of one model's requests.

    Created by ``MediaOffer.load``, a ``(config, catalog, options) -> MediaService``.

    One event loop uses it. Decode in other processes, because decoding is slow and untrusted media may crash it.
    """

    options: MediaOptions
    modalities: tuple[Modality, ...]
    """The modalities that the model supports."""
    transcriber: Transcriber | None
    """Builds transcription requests; None for a model that does not transcribe."""
    marks: Mapping[Modality, str]
    """Marks of items in texts, see ``lsv.media.processor.Marking``; empty if texts use placeholders."""

    @property
    def allowed(self) -> tuple[Modality, ...]:
        """The modalities that the model supports and the operator has not switched off."""
        ...

    def warm(self) -> None:
        """Start the processes that the first item would otherwise wait for; returns at once."""
        ...

    def keep_off(self, cores: Collection[int]) -> None:
        """Keep off these cores, to which the model is bound."""
        ...

    async def ready(self) -> None:
        """Wait until the processor is loaded. Raises the error if loading fails."""
        ...

    def check(self, references: Sequence[Reference]) -> None:
        """Raises ``BadRequest`` for media that the model does not support, or too many items."""
        ...

    async def prepare(
        self,
        references: Sequence[Reference],
        options: Mapping[str, Any],
        owner: Owner = NOBODY,
        salt: bytes = b"",
    ) -> list[Prepared]:
        """Prepare all items for the encoder; ``options`` override the operator's. Raises ``BadRequest``.

        Owners take turns. The decoded size of all items is summed from their headers before the first is decoded.
        Cached items are shared only between requests with the same ``salt``.
        """
        ...

    def spell(self, text: str) -> str:
        """A prompt's text for the tokenizer: placeholders replace its marks."""
        ...

    def place(self, ids: Sequence[int], items: Sequence[Prepared]) -> Prompt:
        """The templated prompt with its items in place. Raises ``BadRequest`` if they do not match."""
        ...

    def split_audio(self, audio: Encoded, seconds: float, owner: Owner = NOBODY) -> AsyncGenerator[AudioChunk, None]:
        """Yield chunks of at most ``seconds``, each as soon as it is prepared. Raises ``BadRequest``."""
        ...

    async def close(self) -> None:
        """Cancel work in progress and end all processes."""
        ...


class OfflineMedia(Protocol):
    """Places media in the prompts of ``LLM``, in its process.

    Created by ``MediaOffer.offline``, a ``(config, catalog, options) -> OfflineMedia``.
    """

    marks: Mapping[Modality, str]
    """See ``MediaService.marks``."""

    @property
    def framed(self) -> bool:
        """Whether a text gets the tokenizer's special tokens around it.

        False if items have no places in the prompt, because an encoder-decoder's tokenizer would frame the text as a
        whole answer. Also false if ``spell`` writes the special tokens.
        """
        ...

    def spell(self, text: str) -> str:
        """See ``MediaService.spell``."""
        ...

    def place(self, ids: Sequence[int], data: Mapping[str, Any], options: Mapping[str, Any]) -> Prompt:
        """A prompt with its placeholders replaced by ``data``. Raises ``BadRequest``.

        ``data`` holds one item or a list under ``image``, ``audio`` and ``video``: a path, encoded bytes, a URL; a PIL
        image or uint8 [height, width, 3]; (samples, rate); uint8 [frames, height, width, 3], alone or with the frames'
        times in seconds. A float array [count, hidden] (or [1, count, hidden]) holds embeddings that replace the
        encoder's. A mapping with ``embeddings`` may have other inputs that the family needs to place them.
        ``options`` override ``mm_processor_kwargs``.
        """
        ...


def open_service(config: EngineConfig, catalog: Catalog, options: MediaOptions) -> MediaService | None:
    """The media service for a model; None for a text-only model.

    Raises ``ConfigError`` if the model takes media and no loaded plugin decodes them.
    """
    offer = _find_offer(config, catalog)
    if offer is None or not has_processor(config, catalog):
        return None
    service: MediaService = catalog.load(offer)(config, catalog, options)
    return service


def open_offline(config: EngineConfig, catalog: Catalog, options: MediaOptions) -> OfflineMedia:
    """As ``open_service``, for the prompts of ``LLM``. Raises ``ConfigError`` for a text-only model, too."""
    offer = _find_offer(config, catalog)
    if offer is None:
        raise text_only(config)
    offline: OfflineMedia = catalog.load(offer, "offline")(config, catalog, options)
    return offline


def _find_offer(config: EngineConfig, catalog: Catalog) -> MediaOffer | None:
    """The media offer; None for a model that neither its own offer nor a processor declares to take media."""
    if not has_processor(config, catalog) and not _declares_media(config, catalog):
        return None
    offers = catalog.offers(MediaOffer)
    if not offers:
        raise ConfigError(
            f"{config.architecture} takes media, but no loaded plugin decodes them: "
            "load the plugin multimodal, which --plugins or --no-plugin leaves out"
        )
    if len(offers) > 1:
        names = " and ".join(f"{offer.name} of {catalog.provider(offer)}" for offer in offers)
        raise PluginError(f"there are several media services, {names}: leave all but one out with --no-plugin")
    return offers[0]


def _declares_media(config: EngineConfig, catalog: Catalog) -> bool:
    offers = (offer for offer in catalog.offers(ModelOffer) if config.architecture in offer.architectures)
    return any(set(offer.modalities) - {"text"} for offer in offers)
