"""The scheduler of an engine, within what its configuration and its workers allow."""

from __future__ import annotations

import msgspec

from lsv.config import EngineConfig, Fit, Offload
from lsv.kv.manager import KVManager
from lsv.kv.prefix import root_hash
from lsv.kv.spec import KVGroup
from lsv.kv.tiers.tiers import Tiers
from lsv.plugins import load
from lsv.scheduler.limits import Limits
from lsv.scheduler.policy import Policy
from lsv.scheduler.scheduler import Scheduler
from lsv.settings.cluster_key import read_cluster_key
from lsv.transports.exchange import Exchange
from lsv.transports.lookups import Lookups
from lsv.transports.making import make_exchange, make_transport


def open_exchange(config: EngineConfig) -> Exchange | None:
    """What other engines fetch from and put into, if any do. It listens from now on. Raises ``ConfigError``."""
    if config.offload is None or config.offload.transfers is None:
        return None
    return make_exchange(config, load(config.plugins).catalog, read_cluster_key())


def make_cache(config: EngineConfig, fit: Fit, exchange: Exchange | None = None) -> KVManager:
    """The books of the cache of an engine whose model is loaded.

    Where contents go to other machines, weights are told by what they are; else by where they are, which costs nothing.
    """
    root = root_hash(
        weights=_place_weights(config) if exchange is None else exchange.seat.site.identity,
        quantizer=config.quantization,
        kv_dtype=config.kv_dtype,
        block_size=fit.block_size,
    )
    groups = tuple(msgspec.convert(group, KVGroup) for group in fit.groups)
    kv = KVManager(
        groups,
        fit.num_blocks,
        fit.block_size,
        root=root,
        prefix_caching=config.prefix_caching,
        tiers=None if config.offload is None else _make_tiers(config, config.offload, fit, exchange),
    )
    if exchange is not None:
        exchange.follow(kv.revocations.note)
    return kv


def _place_weights(config: EngineConfig) -> str:
    return " ".join((config.model, config.load_format, *(f"{part.place}={part.folder}" for part in config.parts)))


def make_scheduler(config: EngineConfig, fit: Fit, kv: KVManager, depth: int, policy: Policy) -> Scheduler:
    """The scheduler of an engine whose model is loaded."""
    drafts = config.drafts
    limits = Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=min(config.max_model_len, fit.max_model_len),
        max_queue=config.max_queue,
        depth=depth,
        stages=config.topology.pipeline,
        chunked_prefill=config.chunked_prefill,
        mixed_batches=config.mixed_batches,
        max_itl=None if config.max_itl_ms is None else config.max_itl_ms / 1000,
        padding=fit.padding,
        adapter_slots=0 if config.adapters is None else config.adapters.slots,
        encoder_tokens=config.encoder_cache_tokens if fit.encoder_parts else 0,
        encoder_parts=max(1, fit.encoder_parts),
        mutual=fit.mutual,
        drafts=0 if drafts is None else drafts.most,
        drafting_rows=None if drafts is None else drafts.rows,
        drafting_length=None if drafts is None else drafts.longest,
        adaptive_drafts=drafts is None or drafts.adaptive,
    )
    return Scheduler(limits, kv, policy)


def _make_tiers(config: EngineConfig, offload: Offload, fit: Fit, exchange: Exchange | None) -> Tiers:
    """What is behind the device. Blocks of all ranks are taken to be as large as those of the rank that reports."""
    block = max(1, fit.kv_bytes // (fit.num_blocks + 1))
    transport = None if offload.transport is None else make_transport(config, load(config.plugins).catalog)
    keeper = None if transport is None else Lookups(transport)
    cells = offload.host_bytes // config.topology.ranks // block
    if exchange is None:
        return Tiers(cells, keeper)
    return Tiers(cells, keeper, exchange.expect, exchange.revoke)
