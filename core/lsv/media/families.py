"""What the family of a model offers for media: a processor, a placement and, where it transcribes, a transcriber."""

from __future__ import annotations

from pathlib import Path

from lsv.config import EngineConfig
from lsv.media.processor import Placement, Processor
from lsv.media.transcriber import Transcriber
from lsv.offers import ModelOffer, ProcessorOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.locate import read_config
from lsv_base.errors import ConfigError, PluginError


def has_processor(config: EngineConfig, catalog: Catalog) -> bool:
    """Whether a plugin offers a processor for the model."""
    return bool(_find_all(config, catalog))


def text_only(config: EngineConfig) -> ConfigError:
    """The error for media where the model takes none."""
    if config.wrapper:
        return ConfigError(f"this model takes text only: only the language model of {config.wrapper} is served")
    return ConfigError(f"{config.architecture} takes text only: no plugin offers a processor for it")


def find_processor(config: EngineConfig, catalog: Catalog) -> ProcessorOffer:
    """The offer for a model. Raises ``ConfigError`` for a model that takes text only."""
    found = _find_all(config, catalog)
    if not found:
        raise text_only(config)
    if len(found) > 1:
        names = " and ".join(f"{offer.name} of {catalog.provider(offer)}" for offer in found)
        raise PluginError(f"{config.architecture} has more than one processor, {names}: leave one out with --no-plugin")
    return found[0]


def _find_all(config: EngineConfig, catalog: Catalog) -> list[ProcessorOffer]:
    """Those for the model's architecture; failing that, for a model that runs another library's code, those for all."""
    offers = catalog.offers(ProcessorOffer)
    found = [offer for offer in offers if config.architecture in offer.architectures]
    return found or [offer for offer in offers if offer.adapts and _is_adapted(config, catalog)]


def _is_adapted(config: EngineConfig, catalog: Catalog) -> bool:
    """Whether the model runs another library's code and takes media."""
    models = (offer for offer in catalog.offers(ModelOffer) if offer.name == config.model_offer)
    return any(offer.adapts and set(offer.modalities) != {"text"} for offer in models)


def load_processor(config: EngineConfig, catalog: Catalog, offer: ProcessorOffer) -> Processor:
    """Raises ``PluginError`` when it can't be imported. Heavy: it belongs where items are decoded."""
    folder = Path(config.model)
    processor: Processor = catalog.load(offer)(folder, read_config(folder, config.overrides))
    return processor


def load_placement(config: EngineConfig, catalog: Catalog, offer: ProcessorOffer) -> Placement:
    """Raises ``PluginError`` when it can't be imported."""
    folder = Path(config.model)
    placement: Placement = catalog.load(offer, "place")(folder, read_config(folder, config.overrides))
    return placement


def load_transcriber(config: EngineConfig, catalog: Catalog, offer: ProcessorOffer) -> Transcriber | None:
    """None for a family that does not transcribe. Raises ``PluginError`` when it can't be imported."""
    if offer.transcribe is None:
        return None
    folder = Path(config.model)
    transcriber: Transcriber = catalog.load(offer, "transcribe")(folder, read_config(folder, config.overrides))
    return transcriber
