"""Adapters in the slots of a model that no worker runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from lsv.adapters.peft import digest
from lsv.config import AdapterOptions, EngineConfig
from lsv.plugins.catalog import Catalog
from lsv_base.errors import NotYet
from lsv_runtime.adapters.slots import Slots, allocate, attach
from lsv_runtime.adapters.store import AdapterStore
from lsv_runtime.worker.load.declared import Declared
from lsv_testing.model import load


def with_slots(config: EngineConfig, catalog: Catalog, count: int) -> tuple[Declared, AdapterStore]:
    """A filled model with empty slots, and the store of their adapters, of which the host keeps one."""
    places: dict[str, Slots] = {}
    declared = load(config, catalog, lambda model: places.update(attach(model, count, 8, torch.float32)))
    allocate(declared.model, torch.device("cpu"))
    options = AdapterOptions(slots=count, max_rank=8, host=1)
    return declared, AdapterStore(declared.model, declared.rename, places, options)


def load_adapter(store: AdapterStore, id: int, folder: Path, known: str = "") -> None:
    """As engines do, ask again until it has been read. ``known`` is what its files' hash is taken to be."""
    while True:
        with suppress(NotYet):
            return store.load(id, str(folder), known or digest(folder).hex())
