"""The seam to what reads, fetches and decodes media: a service beside a server, and one in the caller's own process.

Plugins offer both (``lsv_media``); core decodes nothing itself. Neither is imported for a model that takes text only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any, Protocol

from lsv.config import EngineConfig
from lsv.errors import ConfigError, PluginError
from lsv.media.content_parts import Reference
from lsv.media.families import has_processor, text_only
from lsv.media.items import AudioChunk, Encoded, Prepared
from lsv.media.options import MediaOptions
from lsv.media.transcriber import Transcriber
from lsv.offers import MediaOffer, ModelOffer
from lsv.plugins.catalog import Catalog
from lsv.processes.side.turns import NOBODY, Owner
from lsv.request.media import Modality
from lsv.request.prompt import Prompt


class MediaService(Protocol):
    """Made by ``MediaOffer.load``, a ``(config, catalog, options) -> MediaService``: the media of one model's requests.

    One event loop uses it. Decoding belongs in other processes: it takes long, and what strangers send may break it.
    """

    options: MediaOptions
    modalities: tuple[Modality, ...]
    """What the model takes."""
    transcriber: Transcriber | None
    """How to ask for transcriptions; None for a family that does not transcribe."""
    marks: Mapping[Modality, str]
    """What stands for items in texts, see ``lsv.media.processor.Marking``; empty where placeholders do."""

    @property
    def allowed(self) -> tuple[Modality, ...]:
        """What the model takes and the operator has not switched off."""
        ...

    def warm(self) -> None:
        """Start what the first item would otherwise wait for; returns at once."""
        ...

    def keep_off(self, cores: Collection[int]) -> None:
        """Leave these cores to the model, where it is bound to some of them."""
        ...

    async def ready(self) -> None:
        """Wait until the processor has been loaded once. Raises why it can't be."""
        ...

    def check(self, references: Sequence[Reference]) -> None:
        """Raises ``BadRequest`` for media that the model does not take, or more than a prompt may hold."""
        ...

    async def prepare(
        self,
        references: Sequence[Reference],
        options: Mapping[str, Any],
        owner: Owner = NOBODY,
        salt: bytes = b"",
    ) -> list[Prepared]:
        """All items as the encoder takes them; ``options`` are laid over the operator's. Raises ``BadRequest``.

        Owners take turns. What all items will measure is summed from their headers before the first is decoded. What is
        kept of them is for those with the same ``salt``.
        """
        ...

    def spell(self, text: str) -> str:
        """A prompt's text as it is to be tokenised: with placeholders for its marks."""
        ...

    def place(self, ids: Sequence[int], items: Sequence[Prepared]) -> Prompt:
        """The templated prompt with its items in place. Raises ``BadRequest`` where they do not match."""
        ...

    def split_audio(self, audio: Encoded, seconds: float, owner: Owner = NOBODY) -> AsyncGenerator[AudioChunk, None]:
        """Chunks of at most ``seconds``, each as soon as it is prepared. Raises ``BadRequest``."""
        ...

    async def close(self) -> None:
        """End what is in progress, and all that was started."""
        ...


class OfflineMedia(Protocol):
    """Made by ``MediaOffer.offline``, a ``(config, catalog, options) -> OfflineMedia``, in the process of ``LLM``."""

    marks: Mapping[Modality, str]
    """See ``MediaService.marks``."""

    @property
    def framed(self) -> bool:
        """Whether a text gets the tokenizer's special tokens around it: not where items have no places in the prompt,
        since an encoder-decoder's tokenizer would frame it as a whole answer, nor where ``spell`` writes them.
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
        encoder's; in a mapping, as ``embeddings``, other inputs may stand beside them that the family needs to place
        them. ``options`` are laid over ``mm_processor_kwargs``.
        """
        ...


def open_service(config: EngineConfig, catalog: Catalog, options: MediaOptions) -> MediaService | None:
    """The media service for a model; None for a model that takes text only.

    Raises ``ConfigError`` where the model takes media and no loaded plugin decodes them.
    """
    offer = _find_offer(config, catalog)
    if offer is None or not has_processor(config, catalog):
        return None
    service: MediaService = catalog.load(offer)(config, catalog, options)
    return service


def open_offline(config: EngineConfig, catalog: Catalog, options: MediaOptions) -> OfflineMedia:
    """The same for the prompts of ``LLM``. Raises ``ConfigError`` for a model that takes text only, too."""
    offer = _find_offer(config, catalog)
    if offer is None:
        raise text_only(config)
    offline: OfflineMedia = catalog.load(offer, "offline")(config, catalog, options)
    return offline


def _find_offer(config: EngineConfig, catalog: Catalog) -> MediaOffer | None:
    """None for a model that takes text only, by its own offer and by those of processors."""
    if not has_processor(config, catalog) and not _declares_media(config, catalog):
        return None
    offers = catalog.offers(MediaOffer)
    if not offers:
        raise ConfigError(
            f"{config.architecture} takes media, and no loaded plugin decodes them: "
            "load the plugin multimodal, which --plugins or --no-plugin has left out"
        )
    if len(offers) > 1:
        names = " and ".join(f"{offer.name} of {catalog.provider(offer)}" for offer in offers)
        raise PluginError(f"there is more than one media service, {names}: leave one out with --no-plugin")
    return offers[0]


def _declares_media(config: EngineConfig, catalog: Catalog) -> bool:
    offers = (offer for offer in catalog.offers(ModelOffer) if config.architecture in offer.architectures)
    return any(set(offer.modalities) - {"text"} for offer in offers)
