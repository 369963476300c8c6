"""Drafts by the layers of the model's own checkpoint that predict further tokens."""

from __future__ import annotations

from lsv.config import EngineConfig
from lsv.offers import ModelOffer
from lsv.plugins.catalog import Catalog
from lsv_base.errors import ConfigError
from lsv_drafters.states.drafter import StatesDrafter
from lsv_drafters.states.source import WithAliases
from lsv_runtime.nn.model import Architecture, Model
from lsv_runtime.weights.checkpoint import CheckpointSource, RenamedSource
from lsv_runtime.weights.halves import Half
from lsv_runtime.worker.load.bound import Bound
from lsv_runtime.worker.load.declared import declare
from lsv_runtime.worker.load.loaded import locate_half, open_source


class FurtherDrafter(StatesDrafter):
    def taps(self, model: Model) -> tuple[int, ...]:
        return (len(model.layers),)

    def architecture(self, config: EngineConfig, catalog: Catalog) -> Architecture:
        offer = catalog.find(ModelOffer, config.model_offer)
        if offer.further is None:
            raise ConfigError(
                f"speculative_config: {config.architecture} is served without layers that predict further tokens: "
                "choose another method",
                param="speculative_config",
            )
        return catalog.load(offer, "further")  # type: ignore[no-any-return]

    def half(self, config: EngineConfig, catalog: Catalog) -> Half | None:
        return locate_half(config, declare(config, catalog), catalog) if config.wrapper else None

    def open(self, config: EngineConfig, own: EngineConfig, bound: Bound, catalog: Catalog) -> CheckpointSource:
        source, half = open_source(own, bound.declared, catalog), bound.declared.half
        source = source if half is None else RenamedSource(source, half.rename)
        return WithAliases(source, getattr(bound.declared.model, "aliases", {}))
