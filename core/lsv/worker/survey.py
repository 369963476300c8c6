"""What a configuration would load, without reading a weight: memory, cache, bound ops."""

from __future__ import annotations

import msgspec

from lsv.catalog import Catalog
from lsv.config import BoundOp, EngineConfig, Fit
from lsv.nn import build
from lsv.platform import Memory
from lsv.worker.loading import check_layers, make_backend, open_device
from lsv.worker.memory import after_weights, plan_memory


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration's device memory before loading, and how the model would fit."""

    memory: Memory
    fit: Fit


def survey(config: EngineConfig, catalog: Catalog) -> Survey:
    """Declare the model on meta, bind its ops, plan the memory of one rank. Raises ``StartError`` as loading would."""
    device = open_device(config, catalog, rank=0)
    try:
        declared = build.declare(config, catalog, torch_device=device.torch_device)
        backend = make_backend(config, catalog)
        check_layers(declared, backend, config)
        ops = build.bind(declared, catalog, config.platform, config.reference_ops)
        memory = device.memory()
        budget = device.budget(after_weights(memory, declared.weight_bytes), config.memory_share)
        fit = plan_memory(declared, backend, budget, config)
        return Survey(memory=memory, fit=msgspec.structs.replace(fit, ops=ops))
    finally:
        device.close()


def bound_ops(config: EngineConfig, catalog: Catalog) -> tuple[BoundOp, ...]:
    """The op table of a configuration, whether or not its cache would fit."""
    device = open_device(config, catalog, rank=0)
    try:
        declared = build.declare(config, catalog, torch_device=device.torch_device)
        return build.bind(declared, catalog, config.platform, config.reference_ops)
    finally:
        device.close()
