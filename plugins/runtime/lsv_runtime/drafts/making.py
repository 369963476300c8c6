"""The drafter of a worker, and what it can't be combined with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsv.config import EngineConfig, Reason
from lsv.offers import DrafterOffer
from lsv.plugins.catalog import Catalog
from lsv_base.errors import ConfigError
from lsv_runtime.drafts.drafter import Drafter

if TYPE_CHECKING:
    from lsv_runtime.nn.model import Model


def make_drafter(config: EngineConfig, catalog: Catalog) -> Drafter | None:
    """None where nothing is drafted. Raises ``ConfigError`` for options that the drafter can't follow."""
    return None if config.drafts is None else _make(config, catalog)


def check_taps(model: Model, config: EngineConfig, catalog: Catalog) -> None:
    """Raises ``ConfigError`` for a drafter that reads states from between the layers of a model that is about to be cut
    into stages: it runs beside the last of them.
    """
    if config.drafts is None:
        return
    taps = _make(config, catalog).taps(model)
    if taps and taps != (len(model.layers),):
        raise ConfigError(
            f"speculative_config: {config.drafts.drafter} reads states from between layers that other stages have: not "
            f"with pipeline_parallel_size={config.topology.pipeline}; choose another method, or spread the model by "
            "--tensor-parallel-size instead",
            param="speculative_config",
        )


def taps_of(drafter: Drafter | None, model: Model, config: EngineConfig) -> tuple[int, ...]:
    """``Drafter.taps`` of the model, or of the stage that is left of it after ``check_taps``."""
    if drafter is None:
        return ()
    if config.topology.pipeline > 1:
        return (len(model.layers),) if drafter.reads_all else ()
    return drafter.taps(model)


def weigh_drafter(config: EngineConfig, catalog: Catalog) -> tuple[Reason, ...]:
    """The bytes of the device's memory that the drafter will take; empty for none. Raises ``StartError``."""
    size = 0 if config.drafts is None else _make(config, catalog).weigh(config, catalog)
    return (Reason("drafter", str(size), f"what {config.drafts.drafter} drafts by"),) if config.drafts and size else ()


def _make(config: EngineConfig, catalog: Catalog) -> Drafter:
    assert config.drafts is not None
    made = catalog.load(catalog.find(DrafterOffer, config.drafts.drafter))(config.drafts)
    assert isinstance(made, Drafter)
    return made
