"""A model and its cache in the memory of a device, which may be given back for a while."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch

from lsv.config import EngineConfig
from lsv.engine.executor import ReportProgress
from lsv.plugins.catalog import Catalog
from lsv.transports.making import identify
from lsv_base.errors import CheckpointError, Unavailable
from lsv_runtime.adapters.store import Served
from lsv_runtime.devices.device import Device
from lsv_runtime.pipeline.stage import Stage
from lsv_runtime.worker.load.graphs import report_graphs
from lsv_runtime.worker.load.groups import Groups
from lsv_runtime.worker.load.loaded import Loaded, load
from lsv_runtime.worker.load.parked import ParkedWeights
from lsv_runtime.worker.load.stages import Stages


class ResidentModel:
    """Loads a model, and has it sleep and wake up; all with the same number of blocks."""

    def __init__(
        self,
        config: EngineConfig,
        catalog: Catalog,
        device: Device,
        stage: Stage,
        groups: Groups,
    ) -> None:
        self._config, self._catalog, self._stage = config, catalog, stage
        self.device, self.groups = device, groups
        self._loaded: Loaded | None = None
        self._cache: Any = None
        self._has_cache = False
        self._parked: ParkedWeights | None = None
        self._adapters: Served | None = None
        self._kept_for = ""
        self._frozen = False
        self._stages = Stages(device)

    @property
    def awake(self) -> bool:
        """Whether weights and cache are where they can be computed with."""
        return self._loaded is not None and self._parked is None and self._has_cache

    @property
    def loaded(self) -> Loaded:
        assert self._loaded is not None, "the model has not been loaded"
        return self._loaded

    @property
    def cache(self) -> Any:
        assert self._has_cache, "the cache has been given back"
        return self._cache

    @property
    def memory(self) -> Sequence[torch.Tensor]:
        """All that the cache keeps, page by page: uint8 [pages, bytes] each."""
        return self.loaded.backend.memory(self.cache)

    def load(self, report: ReportProgress) -> Loaded:
        """Read the weights and allocate the cache. Raises ``StartError``."""
        self._kept_for = self._identify()
        self._loaded = self._load(report)
        self._config = msgspec.structs.replace(self._config, num_blocks=self._loaded.fit.num_blocks)
        self._allocate()
        self._stages.tell("init_cache_engine")
        return self._loaded

    def _load(self, report: ReportProgress) -> Loaded:
        sharing, world, exchange = self.groups.sharing, self.groups.world, self.groups.exchange
        return load(
            self._config, self._catalog, self.device, sharing, report, self._stage, world, exchange, self._stages.tell
        )

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Steps are captured or compiled inside; the log says what that takes."""
        with report_graphs(self.device, self.loaded.fit):
            yield
        self._stages.tell("Warm-up")

    def sleep(self, level: int) -> None:
        """Give back the cache, and the device's memory of the weights: the host keeps them, or at level 2 nobody.

        Nobody else may hold the model, its cache or a captured step any more.
        """
        if self._has_cache:
            self._cache, self._has_cache = None, False
            if self._loaded is not None:
                self._loaded.bound.allocate(1, self._config, self.device)  # the backend lets go of the one before
        if level == 1 and self._loaded is not None:
            self._parked = self._parked or ParkedWeights(self._loaded.declared.model)
        elif self._loaded is not None:
            self._adapters = None if self._loaded.adapters is None else self._loaded.adapters.served
            self._loaded = self._parked = None
            self._frozen = gc.get_freeze_count() > 0
            gc.unfreeze()  # models are full of cycles, and what was frozen is never collected
        gc.collect()
        self.device.release_cache()

    def wake_up(self, parts: Collection[str]) -> None:
        """Take memory again for ``weights``, ``kv_cache`` or both; parts that are there stay as they are.

        Raises ``Unavailable`` where there is too little memory, and ``CheckpointError`` where a checkpoint that is to
        be read again has changed: what could not be brought back still sleeps. Of several ranks, each has to succeed.
        """
        self._stages = Stages(self.device)
        try:
            if "weights" in parts:
                self._bring_weights()
            if "kv_cache" in parts and not self._has_cache:
                self._allocate()
            return
        except (torch.OutOfMemoryError, MemoryError) as cause:
            if not self.groups.alone:
                raise
            why = str(cause).splitlines()[0] if str(cause) else "memory ran out"
        self.device.release_cache()
        raise Unavailable(f"there is too little memory to wake up ({why}): free some and wake the engine up again")

    def _bring_weights(self) -> None:
        if self._parked is not None:
            self._parked.restore()
            self._parked = None
        elif self._loaded is None:
            if self._identify() != self._kept_for:
                raise CheckpointError(
                    f"{self._config.model} has changed since the engine started, and its saved KV cache belongs to "
                    "the old weights: restart the engine"
                )
            self._loaded = self._load(lambda *_: None)
            if self._loaded.adapters is not None and self._adapters is not None:
                self._loaded.adapters.serve(self._adapters)
            if self._frozen:
                gc.freeze()

    def _identify(self) -> str:
        """What the weights are called by a transport, if there is one: what it keeps outlives them."""
        offload = self._config.offload
        return "" if offload is None or offload.transport is None else identify(self._config)

    def _allocate(self) -> None:
        """The cache's size is known from the first time on, also while the weights sleep."""
        self._cache = self.loaded.allocate_cache(self._config, self.device)
        self._has_cache = True
