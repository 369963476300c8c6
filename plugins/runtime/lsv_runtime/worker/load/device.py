"""The device of a rank: opening it, connecting it to others, and the largest step it will be asked for."""

from __future__ import annotations

from lsv.config import EngineConfig
from lsv.plugins.catalog import Catalog
from lsv.resolve.hardware import load_platform
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.device import Device
from lsv_runtime.devices.opening import open_rank
from lsv_runtime.devices.shapes import BatchLimits


def open_device(config: EngineConfig, catalog: Catalog, rank: int, place: tuple[int, int] | None = None) -> Device:
    """The device of one rank. ``place`` says which one it is of how many ranks on its machine; None: all ranks of all
    replicas are on this one.
    """
    platform = load_platform(config.platform, catalog, emulate=config.emulate)
    topology = config.topology
    mine, all_of_them = place or (topology.first_device + rank, topology.devices)
    return open_rank(platform, mine, all_of_them, config.options, config.device)


def connect(device: Device, group: Group) -> Communicator | None:
    """The tested communicator of a group; None for a single rank."""
    if group.size == 1:
        return None
    communicator = device.communicator(group)
    assert communicator is not None, "a device must connect ranks or refuse to"
    communicator.self_test()
    return communicator


def batch_limits(config: EngineConfig, num_blocks: int, *, prompts_captured: bool = False) -> BatchLimits:
    """The largest step a configuration allows over a cache of ``num_blocks`` blocks."""
    return BatchLimits(
        max_rows=config.max_num_seqs,
        max_tokens=config.max_num_batched_tokens,
        max_blocks=-(-config.max_model_len // config.block_size),
        block_size=config.block_size,
        num_blocks=num_blocks,
        contexts=config.cuts_prompts,
        drafts=0 if config.drafts is None else config.drafts.most,
        prompts_captured=prompts_captured,
    )
