"""Collectives over any of torch's process-group backends, without the global group of torch."""

from __future__ import annotations

import abc
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from lsv.settings.host_ip import read_host_ip
from lsv_base.errors import ConfigError
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.devices.rank_sum import RankSum

MakeBackend = Callable[[Any, int, int, timedelta], Any]
"""(store, rank, size, timeout) -> one of torch's backends, such as ``ProcessGroupGloo``."""

SERVED = "tcp://"
"""What an address begins with where neither of the ranks keeps the store they meet in."""

TIMEOUT = timedelta(minutes=5)
"""How long a rank waits for the others."""

_WORTH_A_COLLECTIVE = 1 << 20
"""Bytes that a rank must be spared receiving for a second collective: what a link of 100 GB/s carries in the 10 µs that
it takes to start one. Slower links start slower as well.
"""

_LARGE = 1 << 17
"""How often a test repeats 20 bytes, so that they are summed in shares by any group of three or more."""

_MOST_SHOWN = 64


class GatheringCommunicator(Communicator):
    """What follows from gathering the parts of all ranks; and sums in rank order, by ``add``.

    On meta, where models are tried before they have weights, nobody is asked: shapes are all there is.
    """

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group, self._device = group, device
        self.add = RankSum(group.size)
        self.ops = (self.add,)

    @abc.abstractmethod
    def gather(self, flat: torch.Tensor) -> torch.Tensor:
        """Every rank's ``flat`` [n], one after the other: [ranks * n]."""

    @abc.abstractmethod
    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """``all_reduce`` of tensors that lie on the device."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x) if x.is_meta else self.add_up(x)

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        mine = x.contiguous().view(-1)
        every = mine.repeat(self.group.size) if x.is_meta else self.gather(mine)
        every = every.view(self.group.size, *x.shape)
        return every.movedim(0, dim % x.dim()).flatten(dim % x.dim(), dim % x.dim() + 1)

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

    def _check(self, name: str, got: torch.Tensor, value: torch.Tensor) -> None:
        if not torch.equal(got, value):
            raise ConfigError(
                f"{name} of the {self.group.axis} group gave {_shown(got)} instead of {_shown(value)}: "
                f"check the links between the ranks at {self.group.address}"
            )


class BackendCommunicator(GatheringCommunicator):
    """One process group; ``group.rank`` counts within it. Tensors lie on ``device``.

    Sums are made in rank order from the parts of all, by every rank or by the one that has a share of the elements:
    the bits are the same on every rank and do not depend on how a library would cut a larger tensor.
    """

    def __init__(self, group: Group, make: MakeBackend, device: torch.device) -> None:
        super().__init__(group, device)
        self._backend = make(open_store(group), group.rank, group.size, TIMEOUT)

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """Narrow floats are added in float32.

        A rank receives all of every other's ``x``; where it is large, only its share of them and then the other sums.
        """
        flat = x.contiguous().view(-1)
        if _spared(flat.nbytes, self.group.size) < _WORTH_A_COLLECTIVE:
            return self.add(self.gather(flat).view(self.group.size, -1)).view(x.shape)  # type: ignore[no-any-return]
        sums = self.gather(self.add(self._exchange(flat)))
        return sums[: flat.numel()].view(x.shape)

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Rank ``source`` of the group's tensor, on every rank."""
        bytes_, work = self._broadcast(x, source)
        work.wait()
        return bytes_.view(x.dtype).view(x.shape)

    def start_broadcast(self, x: torch.Tensor) -> Callable[[], object]:
        kept = self._broadcast(x, 0)  # the copy must live until it has been sent
        return lambda: kept[1].wait()

    def _broadcast(self, x: torch.Tensor, source: int) -> tuple[torch.Tensor, Any]:
        """A copy of ``x`` as bytes, which becomes that of the source, and the work that waits for it."""
        bytes_ = x.contiguous().view(-1).view(torch.uint8).clone()
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        return bytes_, self._backend.broadcast([bytes_], options)

    def close(self) -> None:
        """Also drops the group: torch's threads must have ended before the interpreter does."""
        self._backend.shutdown()
        del self._backend

    def gather(self, flat: torch.Tensor) -> torch.Tensor:
        """They travel as bytes, so every dtype can."""
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


def open_store(group: Group) -> Any:
    """Where the ranks of this group tell each other how they are reached."""
    torch_dist: Any = dist  # its stores are public, but not to type checkers
    if group.address.startswith("/"):
        store = torch_dist.FileStore(group.address, group.size)
        store.set_timeout(TIMEOUT)
    else:
        served = group.address.startswith(SERVED)
        host, port = _host_and_port(group.address)
        serves = group.rank == 0 and not served
        size = None if served else group.size
        store = torch_dist.TCPStore(host, port, size, is_master=serves, timeout=TIMEOUT, wait_for_workers=not served)
    return torch_dist.PrefixStore(f"{group.axis}:{group.ranks}", store)


def serve_store(host: str, port: int = 0) -> tuple[Any, str]:
    """A store of this process's, for as long as it is held, and the address at which any ranks may meet in it. Port 0
    means any free port. Raises ``OSError``.

    Whoever reaches a store may read and write it, and by itself torch listens at all of a machine's addresses.
    """
    torch_dist: Any = dist
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = listener.getsockname()[1]
    descriptor = listener.detach()  # the store's from now on
    store = torch_dist.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    return store, f"{SERVED}{host}:{port}"


def gloo(store: Any, rank: int, size: int, timeout: timedelta, *, host: str = "127.0.0.1") -> Any:
    """Collectives between processes of this machine, over its loopback interface; or between those of several, each
    over the interface that has the address ``host``.
    """
    torch_gloo: Any = dist.ProcessGroupGloo
    options = torch_gloo._Options()
    options._timeout, options._devices = timeout, [torch_gloo.create_device(hostname=host)]
    return torch_gloo(store, rank, size, options)


def gloo_for(group: Group) -> MakeBackend:
    """``gloo`` over the interface of this machine's ``--host-ip``, or else over the one by which a group's ranks reach
    the place where they meet.
    """
    if not group.address.startswith(SERVED):
        return gloo
    if own := read_host_ip():
        return partial(gloo, host=own)
    family, _, _, _, place = socket.getaddrinfo(*_host_and_port(group.address), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # sends nothing
        return partial(gloo, host=probe.getsockname()[0])


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix(SERVED).rpartition(":")
    return host, int(port)
