"""Groups of ranks, and their collectives."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import torch

    from lsv_runtime.ops import Bindable


class Group(msgspec.Struct, frozen=True):
    """Ranks that talk to each other along one axis."""

    axis: str
    """tp, pp, ep, dp or world; hosts, where it is the processors of these that talk and not their devices."""
    ranks: tuple[int, ...]
    """All of the group, in order."""
    rank: int
    """This process's place among them."""
    address: str
    """Where they meet: the absolute path of a file in a folder of this user's alone; ``host:port``, where the first of
    them keeps a store; or ``tcp://host:port``, where another process does."""

    @property
    def size(self) -> int:
        return len(self.ranks)


class Communicator(abc.ABC):
    """Collectives of one group. Tensors stay on the device; all_reduce adds in rank order where the backend can."""

    group: Group
    ops: Sequence[Bindable] = ()
    """What of its work a kernel may take over."""

    @abc.abstractmethod
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' ``x``, in its shape and dtype."""

    @abc.abstractmethod
    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """All ranks' ``x`` in rank order, joined along ``dim``, which becomes as many times as long."""

    @abc.abstractmethod
    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        """The ``x`` of rank ``source``; the other ranks' have its shape and dtype."""

    def start_broadcast(self, x: torch.Tensor) -> Callable[[], object]:
        """Begin to hand the first rank's ``x`` to the others, which ``broadcast`` meanwhile; call what is returned to
        wait until they have it. ``x`` may change at once. The default waits here.
        """
        self.broadcast(x)
        return lambda: None

    @abc.abstractmethod
    def self_test(self) -> None:
        """Run every collective on known values; raises ``ConfigError`` naming the one that lied."""

    def close(self) -> None:
        """Leave the group."""
