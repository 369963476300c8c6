"""What a configuration would load, without reading a weight: memory, cache, bound ops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from lsv.config import BoundOp, EngineConfig, Fit
from lsv.plugins.catalog import Catalog
from lsv_runtime.devices.device import Device, Memory
from lsv_runtime.worker.load.bound import bind
from lsv_runtime.worker.load.declared import Declared, declare
from lsv_runtime.worker.load.device import open_device
from lsv_runtime.worker.load.fit import plan_fit
from lsv_runtime.worker.load.streamed import stream_layers


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration's device memory before loading, and how the model would fit."""

    memory: Memory
    fit: Fit


def survey(config: EngineConfig, catalog: Catalog) -> Survey:
    """Declare the model on meta, bind its ops, plan the memory of one rank. Raises ``StartError`` as loading would."""
    with _declared(config, catalog) as (device, declared):
        bound = bind(declared, config, catalog)
        declared.streamed = stream_layers(declared.model, config, device)
        return Survey(memory=device.memory(), fit=plan_fit(bound, config, device))


def bound_ops(config: EngineConfig, catalog: Catalog) -> tuple[BoundOp, ...]:
    """The op table of a configuration, whether or not its cache would fit."""
    with _declared(config, catalog) as (_, declared):
        return bind(declared, config, catalog).ops


@contextmanager
def _declared(config: EngineConfig, catalog: Catalog) -> Iterator[tuple[Device, Declared]]:
    """The device of the first rank, while it is open, and the model declared for it."""
    device = open_device(config, catalog, rank=0)
    try:
        yield device, declare(config, catalog, torch_device=device.torch_device)
    finally:
        device.close()
