"""``lsv doctor --collectives``, which torchrun starts for each device: whether the ranks understand each other.

The checks are those of vLLM's script for hanging collectives: gloo, the device's library, and the latter in a captured
graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lsv.config import OptionValue
from lsv.platform import Platform
from lsv.settings.launchers import LaunchedRank
from lsv_base.errors import ConfigError
from lsv_runtime.devices.collectives import SERVED, BackendCommunicator, gloo_for, serve_store
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.device import Device
from lsv_runtime.devices.opening import open_rank
from lsv_runtime.devices.shapes import Shape

_NUMBERS = 1024
_STEP = Shape("decode", 1, 1, 1)


def check_collectives(
    platform: Platform, options: Mapping[str, OptionValue], launched: LaunchedRank
) -> Iterator[tuple[str, str]]:
    """Names of checks and what they found, as each ends on this rank. Raises ``ConfigError`` for one that fails."""
    store, address = _meet(launched)
    every = tuple(range(launched.size))
    hosts = Group("hosts", every, launched.rank, address)
    gloo = BackendCommunicator(hosts, gloo_for(hosts), torch.device("cpu"))
    gloo.self_test()
    yield "gloo", _sound(launched.size)
    device = open_rank(platform, launched.local_rank, launched.local_size, options)
    communicator = device.communicator(Group("tp", every, launched.rank, address))
    if communicator is None:
        raise ConfigError(f"platform {platform.name} connects no ranks", param="platform")
    communicator.self_test()
    yield platform.name, _sound(launched.size)
    yield f"{platform.name}, in a graph", _check_graph(device, communicator, launched)
    gloo.broadcast(torch.zeros(1))  # nobody leaves, and takes the store along, before all are done
    communicator.close()
    device.close()
    gloo.close()
    del store


def _meet(launched: LaunchedRank) -> tuple[Any, str]:
    """The store where ranks meet, if it is this one's to serve, for as long as it is held; and its address."""
    if launched.served or launched.rank > 0:
        return None, f"{SERVED}{launched.address}:{launched.port}"
    try:
        return serve_store(launched.address, launched.port)
    except OSError as cause:
        raise ConfigError(
            f"MASTER_ADDR={launched.address}, MASTER_PORT={launched.port}: the ranks can't meet here: {cause}; the "
            "address must be one of this machine's, and the port free"
        ) from cause


def _check_graph(device: Device, communicator: Communicator, launched: LaunchedRank) -> str:
    """Sum over all ranks by a captured step, for values that were not there when it was captured."""
    x = torch.ones(_NUMBERS, dtype=torch.float32, device=device.torch_device)

    def step() -> torch.Tensor:
        return communicator.all_reduce(x)

    replay = device.compile(step, _STEP, eager=False)
    if replay is step:
        return "this platform captures none"
    x.fill_(launched.rank + 1)
    expected = launched.size * (launched.size + 1) / 2
    found = replay().cpu()
    if not torch.equal(found, torch.full((_NUMBERS,), expected)):
        raise ConfigError(f"all_reduce in a graph gave {found[0].item():g} on rank {launched.rank}, not {expected:g}")
    return f"all_reduce is right on {launched.size} ranks"


def _sound(size: int) -> str:
    return f"all_reduce, all_gather and broadcast are right on {size} ranks"
