"""A model that is awake, with all that computes beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from lsv.config import EngineConfig
from lsv.engine.executor import ReportProgress
from lsv.plugins.catalog import Catalog
from lsv_runtime.adapters.store import AdapterStore
from lsv_runtime.devices.shapes import BatchLimits
from lsv_runtime.drafts.drafter import Drafter, Site
from lsv_runtime.drafts.making import make_drafter, taps_of
from lsv_runtime.nn.pooling.states import Pool
from lsv_runtime.nn.sampling import Sampling
from lsv_runtime.worker.encoder import MediaEncoder, make_media_encoder
from lsv_runtime.worker.experts.shared import SharedExperts
from lsv_runtime.worker.load.bound import name_strangers
from lsv_runtime.worker.load.dense import make_pool
from lsv_runtime.worker.load.device import batch_limits
from lsv_runtime.worker.load.loaded import Loaded
from lsv_runtime.worker.load.resident import ResidentModel
from lsv_runtime.worker.processing import Processors
from lsv_runtime.worker.runner import ModelRunner
from lsv_runtime.worker.sampling.variants import sample_in_all_ways
from lsv_runtime.worker.slots import Slots


@dataclass(frozen=True, slots=True)
class LiveModel:
    """What a worker computes with while it is awake. It is made anew when the worker wakes up."""

    runner: ModelRunner
    """Runs the model over its cache, warmed up."""

    sampling: Sampling

    adapters: AdapterStore | None
    """None where none are served."""

    pool: Pool
    """Makes vectors of hidden states."""

    media: MediaEncoder

    drafter: Drafter | None
    """None where nothing is drafted, or by another stage."""

    shared: SharedExperts | None
    """None where replicas share no experts."""

    suspects: str
    """Kernels of plugins, for the message of a row whose logits are not finite."""


def make_slots(config: EngineConfig, catalog: Catalog, resident: ResidentModel) -> Slots:
    """The slots of requests on a loaded model. They outlive its sleep."""
    declared, limits = resident.loaded.declared, _limits_of(config, resident.loaded)
    return Slots(
        capacity=limits.max_rows,
        groups=declared.groups,
        block_size=config.block_size,
        blocks=limits.max_blocks,
        vocab_size=declared.vocab_size,
        processors=Processors(catalog, config, declared.vocab_size, resident.device.torch_device),
    )


def _limits_of(config: EngineConfig, loaded: Loaded) -> BatchLimits:
    """How large batches of a loaded model can be."""
    return batch_limits(config, loaded.fit.num_blocks, prompts_captured=loaded.backend.captures_prompts)


def bring_to_life(
    config: EngineConfig,
    catalog: Catalog,
    resident: ResidentModel,
    slots: Slots,
    report: ReportProgress,
    *,
    drafts: bool,
) -> LiveModel:
    """Warm up a model that is in memory; ``drafts`` says whether this stage drafts. Raises ``StartError``."""
    loaded, device, groups = resident.loaded, resident.device, resident.groups
    declared, limits = loaded.declared, _limits_of(config, loaded)
    pool = make_pool(config.pooler, config.model, declared.model.scorer, device.torch_device)
    drafter = make_drafter(config, catalog) if drafts else None
    shared = None if groups.exchange is None else SharedExperts(declared.model, groups.exchange)
    runner = ModelRunner(
        declared.model,
        loaded.backend,
        declared.groups,
        resident.cache,
        device,
        device.shapes(limits),
        padded=config.layout == "padded",
        slots=limits.max_rows,
        links=groups.links,
        taps=taps_of(drafter, declared.model, config),
        shared=shared,
    )
    with resident.warming_up():
        runner.warm_up(
            lambda done, total: report("warm-up", done, total),
            eager=config.enforce_eager,
            sample=partial(sample_in_all_ways, ops=declared.sampling),
        )
    if drafter is not None:
        drafter.start(Site(config, catalog, device, declared.model, declared.sampling))

    def write_item(item: Tensor, slot: int) -> None:
        number = np.array([slot])
        runner.write_item(item, tuple(table.rows(number, 1) for table in slots.tables))

    live = LiveModel(
        runner=runner,
        sampling=declared.sampling,
        adapters=loaded.adapters,
        pool=pool,
        media=make_media_encoder(declared.model, config, device, write_item, groups.links),
        drafter=drafter,
        shared=shared,
        suspects=name_strangers(loaded.fit.ops, catalog),
    )
    if shared is not None:
        shared.wait()
    return live
