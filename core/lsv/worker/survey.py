"""What a configuration would load, without reading a weight: memory, cache, bound ops."""

from __future__ import annotations

import msgspec

from lsv.config import BoundOp, EngineConfig, Fit
from lsv.nn import build
from lsv.platform import Memory
from lsv.plugins.catalog import Catalog
from lsv.worker.loading import open_device, plan_fit, prepare


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration's device memory before loading, and how the model would fit."""

    memory: Memory
    fit: Fit


def survey(config: EngineConfig, catalog: Catalog) -> Survey:
    """Declare the model on meta, bind its ops, plan the memory of one rank. Raises ``StartError`` as loading would."""
    device = open_device(config, catalog, rank=0)
    try:
        prepared = prepare(config, catalog, device)
        return Survey(memory=device.memory(), fit=plan_fit(prepared, config, device))
    finally:
        device.close()


def bound_ops(config: EngineConfig, catalog: Catalog) -> tuple[BoundOp, ...]:
    """The op table of a configuration, whether or not its cache would fit."""
    device = open_device(config, catalog, rank=0)
    try:
        declared = build.declare(config, catalog, torch_device=device.torch_device)
        return build.bind(declared, catalog, config.platform, config.reference_ops, config)
    finally:
        device.close()
