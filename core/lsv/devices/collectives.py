"""Collectives over any of torch's process-group backends, without the global group of torch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from lsv.devices.rank_sum import RankSum
from lsv.errors import ConfigError
from lsv.platform import Communicator, Group

MakeBackend = Callable[[Any, int, int, timedelta], Any]
"""(store, rank, size, timeout) -> one of torch's backends, such as ``ProcessGroupGloo``."""

_TIMEOUT = timedelta(minutes=5)

_WORTH_A_COLLECTIVE = 1 << 20
"""Bytes that a rank must be spared receiving for a second collective: what a link of 100 GB/s carries in the 10 µs that
it takes to start one. Slower links start slower as well.
"""

_LARGE = 1 << 17
"""How often a test repeats 20 bytes, so that they are summed in shares by any group of three or more."""

_MOST_SHOWN = 64


class BackendCommunicator(Communicator):
    """One process group; ``group.rank`` counts within it. Tensors lie on ``device``.

    Sums are made in rank order from the parts of all, by every rank or by the one that has a share of the elements:
    the bits are the same on every rank and do not depend on how a library would cut a larger tensor.
    """

    def __init__(self, group: Group, make: MakeBackend, device: torch.device) -> None:
        self.group, self._device = group, device
        torch_dist: Any = dist  # its stores are public, but not to type checkers
        named = torch_dist.PrefixStore(f"{group.axis}:{group.ranks}", _open_store(group))
        self._backend = make(named, group.rank, group.size, _TIMEOUT)
        self._sum = RankSum(group.size)
        self.ops = (self._sum,)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Narrow floats are added in float32.

        A rank receives all of every other's ``x``; where it is large, only its share of them and then the other sums.
        """
        flat = x.contiguous().view(-1)
        if _spared(flat.nbytes, self.group.size) < _WORTH_A_COLLECTIVE:
            return self._sum(self._gather(flat).view(self.group.size, -1)).view(x.shape)  # type: ignore[no-any-return]
        sums = self._gather(self._sum(self._exchange(flat)))
        return sums[: flat.numel()].view(x.shape)

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        every = self._gather(x.contiguous().view(-1)).view(self.group.size, *x.shape)
        return every.movedim(0, dim % x.dim()).flatten(dim % x.dim(), dim % x.dim() + 1)

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Rank ``source`` of the group's tensor, on every rank."""
        bytes_ = x.contiguous().view(-1).view(torch.uint8).clone()
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._backend.broadcast([bytes_], options).wait()
        return bytes_.view(x.dtype).view(x.shape)

    def self_test(self) -> None:
        first = torch.arange(5, dtype=torch.float32, device=self._device)
        mine = first * (self.group.rank + 1)
        every = [first * (place + 1) for place in range(self.group.size)]
        total = sum(every[1:], every[0])
        expected = {
            "all_reduce": (self.all_reduce(mine), total),
            "a large all_reduce": (self.all_reduce(mine.repeat(_LARGE)), total.repeat(_LARGE)),
            "all_gather": (self.all_gather(mine), torch.cat(every)),
            "broadcast": (self.broadcast(mine), every[0]),
        }
        for name, (got, value) in expected.items():  # when all ranks have been through all of them
            self._check(name, got, value)

    def close(self) -> None:
        """Also drops the group: torch's threads must have ended before the interpreter does."""
        self._backend.shutdown()
        del self._backend

    def _check(self, name: str, got: torch.Tensor, value: torch.Tensor) -> None:
        if not torch.equal(got, value):
            raise ConfigError(
                f"{name} of the {self.group.axis} group gave {_shown(got)} instead of {_shown(value)}: "
                f"check the links between the ranks at {self.group.address}"
            )

    def _gather(self, flat: torch.Tensor) -> torch.Tensor:
        """Every rank's ``flat`` [n], one after the other: [ranks * n]. They travel as bytes, so every dtype can."""
        mine = flat.view(torch.uint8)
        every = mine.new_empty(self.group.size * mine.numel())
        self._backend._allgather_base(every, mine).wait()
        return every.view(flat.dtype)

    def _exchange(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's share of every rank's ``flat`` [n]: [ranks, n / ranks], rounded up and filled with zeros."""
        size = self.group.size
        rest = -flat.numel() % size
        given = functional.pad(flat, (0, rest)) if rest else flat
        taken = torch.empty_like(given)
        self._backend.alltoall_base(taken, given, [], []).wait()
        return taken.view(size, -1)


def _shown(x: torch.Tensor) -> str:
    return f"{x[:_MOST_SHOWN].tolist()}" + (f" … ({len(x)} numbers)" if len(x) > _MOST_SHOWN else "")


def _spared(count: int, ranks: int) -> float:
    """Bytes that a rank receives less where ``count`` of each are exchanged, summed and gathered."""
    return (ranks - 1) * count * (1 - 2 / ranks)


def _open_store(group: Group) -> Any:
    """Where the ranks tell each other how they are reached."""
    torch_dist: Any = dist
    if group.address.startswith("/"):
        store = torch_dist.FileStore(group.address, group.size)
        store.set_timeout(_TIMEOUT)
        return store
    host, _, port = group.address.rpartition(":")
    return torch_dist.TCPStore(host, int(port), group.size, is_master=group.rank == 0, timeout=_TIMEOUT)


def gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Collectives between processes of this machine, over its loopback interface."""
    torch_gloo: Any = dist.ProcessGroupGloo
    options = torch_gloo._Options()
    options._timeout, options._devices = timeout, [torch_gloo.create_device(hostname="127.0.0.1")]
    return torch_gloo(store, rank, size, options)
