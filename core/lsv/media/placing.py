"""Media's places in a prompt: which processor a model has, and its placeholders exchanged for what stands for items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lsv.config import EngineConfig
from lsv.errors import BadRequest, ConfigError, PluginError
from lsv.media.orders import Prepared
from lsv.media.processor import Placement, expand
from lsv.media.transcriber import Transcriber
from lsv.offers import ProcessorOffer, load_object
from lsv.plugins.catalog import Catalog
from lsv.request.media import Media, Modality, Positions
from lsv.resolve.locate import read_config


class Placed(msgspec.Struct, frozen=True):
    """A prompt in which media have their places."""

    ids: tuple[int, ...]
    media: tuple[Media, ...] = ()
    positions: Positions | None = None


def find_processor(config: EngineConfig, catalog: Catalog) -> ProcessorOffer:
    """The offer for a model's architecture. Raises ``ConfigError`` for a model that takes text only."""
    found = [offer for offer in catalog.offers(ProcessorOffer) if config.architecture in offer.architectures]
    if not found:
        raise ConfigError(f"{config.architecture} takes text only: no plugin offers a processor for it")
    if len(found) > 1:
        names = " and ".join(f"{offer.name} of {catalog.provider(offer)}" for offer in found)
        raise PluginError(f"{config.architecture} has more than one processor, {names}: leave one out with --no-plugin")
    return found[0]


def load_placement(config: EngineConfig, offer: ProcessorOffer) -> Placement:
    """Raises ``PluginError`` when it can't be imported."""
    make = _import(offer, offer.place)
    placement: Placement = make(read_config(Path(config.model), config.overrides))
    return placement


def load_transcriber(config: EngineConfig, offer: ProcessorOffer) -> Transcriber | None:
    """None for a family that does not write down what is said. Raises ``PluginError`` when it can't be imported."""
    if offer.transcribe is None:
        return None
    make = _import(offer, offer.transcribe)
    folder = Path(config.model)
    transcriber: Transcriber = make(folder, read_config(folder, config.overrides))
    return transcriber


def place(ids: Sequence[int], items: Sequence[Prepared], placement: Placement) -> Placed:
    """The prompt with its items in place. Those of a modality keep their order, however a template mixes modalities.

    Raises ``BadRequest`` where placeholders and items do not match one to one.
    """
    ordered = [(item.modality, item.hash, item.processed) for item in _in_order(ids, items, placement)]
    try:
        expanded, media = expand(ids, ordered, placement)
    except ValueError as cause:
        raise BadRequest(f"the media do not fit the prompt: {cause}", param="messages") from None
    return Placed(expanded, media, placement.positions(expanded, media))


def _import(offer: ProcessorOffer, target: str) -> Any:
    try:
        return load_object(target)
    except Exception as cause:
        raise PluginError(f"processor {offer.name!r} can't be loaded from {target}: {cause}") from cause


def _in_order(ids: Sequence[int], items: Sequence[Prepared], placement: Placement) -> list[Prepared]:
    """The items by their placeholders' order; those that have none come last."""
    kinds = {token: modality for modality, token in placement.placeholders.items()}
    waiting: dict[Modality, Iterator[Prepared]] = {
        modality: iter([item for item in items if item.modality == modality]) for modality in set(kinds.values())
    }
    found = [item for token in ids if token in kinds and (item := next(waiting[kinds[token]], None)) is not None]
    left = [item for modality in waiting.values() for item in modality]
    return [*found, *left, *(item for item in items if item.modality not in waiting)]
