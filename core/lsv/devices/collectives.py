"""Collectives over any of torch's process-group backends, without the global group of torch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lsv.errors import ConfigError
from lsv.platform import Communicator, Group

MakeBackend = Callable[[Any, int, int, timedelta], Any]
"""(store, rank, size, timeout) -> one of torch's backends, such as ``ProcessGroupGloo``."""

_TIMEOUT = timedelta(minutes=5)


class BackendCommunicator(Communicator):
    """One process group; ``group.rank`` counts within it.

    Tensors lie on ``device`` and travel as bytes, so every dtype can.
    Sums are made by every rank in rank order, from the parts of all: the bits are the same on every rank and do not
    depend on how a library would cut a larger tensor.
    """

    def __init__(self, group: Group, make: MakeBackend, device: torch.device) -> None:
        self.group, self._device = group, device
        torch_dist: Any = dist  # its stores are public, but not to type checkers
        named = torch_dist.PrefixStore(f"{group.axis}:{group.ranks}", _open_store(group))
        self._backend = make(named, group.rank, group.size, _TIMEOUT)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Narrow floats are added in float32."""
        parts = self._gather(x)
        narrow = x.is_floating_point() and x.element_size() < 4
        total = parts[0].float() if narrow else parts[0]
        for part in parts[1:]:
            total = total + part
        return total.to(x.dtype)

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat(self._gather(x), dim)

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Rank ``source`` of the group's tensor, on every rank."""
        bytes_ = _as_bytes(x).clone()
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._backend.broadcast([bytes_], options).wait()
        return _from_bytes(bytes_, x)

    def self_test(self) -> None:
        first = torch.arange(5, dtype=torch.float32, device=self._device)
        mine = first * (self.group.rank + 1)
        every = [first * (place + 1) for place in range(self.group.size)]
        self._expect("all_reduce", self.all_reduce, mine, sum(every[1:], every[0]))
        self._expect("all_gather", self.all_gather, mine, torch.cat(every))
        self._expect("broadcast", self.broadcast, mine, every[0])

    def close(self) -> None:
        """Also drops the group: torch's threads must have ended before the interpreter does."""
        self._backend.shutdown()
        del self._backend

    def _expect(
        self, name: str, collective: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, value: torch.Tensor
    ) -> None:
        got = collective(x)
        if not torch.equal(got, value):
            raise ConfigError(
                f"{name} of the {self.group.axis} group gave {got.tolist()} instead of {value.tolist()}: "
                f"check the links between the ranks at {self.group.address}"
            )

    def _gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        mine = _as_bytes(x)
        every = [torch.empty_like(mine) for _ in range(self.group.size)]
        self._backend.allgather([every], [mine]).wait()
        return [_from_bytes(part, x) for part in every]


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


def _as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def _from_bytes(bytes_: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return bytes_.view(like.dtype).view(like.shape)
