"""Tokens on their way to the experts of other replicas, and what these have made of them on its way back."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

from lsv_runtime.devices.communicator import Communicator

_NEWS_SECONDS = 5.0
"""In which it is known which replica is gone, once a connection to it has broken."""


@contextmanager
def others_named() -> Iterator[None]:
    """Where replicas fail together since one is gone, those who know which end this process, with an error that names
    it: what fails here waits for that.
    """
    try:
        yield
    except RuntimeError:
        time.sleep(_NEWS_SECONDS)
        raise


class TokenExchange:
    """Between the ranks of replicas that share the experts of some layers; those of one follow each other, and have the
    same tokens.

    All ranks ``begin`` each step. In each mixture they ``gather`` everybody's tokens, compute what their own experts
    make of them, and ``add_up``. Sums are made in rank order, so other replicas' tokens change no bit of a row.

    Before the first ``begin`` all replicas run the same shapes, one after the other: each gives as many tokens as any
    other. So do they in a step that is ``even``, and a captured step is made for that.
    """

    def __init__(
        self, communicator: Communicator, ranks: int, device: torch.device, hosts: Communicator | None = None
    ) -> None:
        """``ranks`` are those of one replica. Sizes go by ``hosts``, between the same ranks, where asking the device
        for them would wait for its work.
        """
        self.communicator = communicator
        self.hosts = hosts
        self._ranks = ranks
        self._replica = communicator.group.rank // ranks
        self._device = device if hosts is None else torch.device("cpu")
        self._sizes: list[int] | None = None
        self._given = 0
        self._real = torch.full((1,), sys.maxsize, dtype=torch.int64, device=device)

    def begin(self, tokens: int, size: int | None = None, *, ready: bool = False) -> bool:
        """This replica has so many tokens in the step that begins; whether any has some.

        ``size`` counts those that fill them up as well. Where the largest size of all is that of a captured step, for
        which its replica is ``ready``, everybody gives that many.
        """
        mine = torch.tensor([[tokens if size is None else size, ready]], device=self._device)
        with others_named():
            found = (self.hosts or self.communicator).all_gather(mine, 0)[:: self._ranks].tolist()
        sizes = [size for size, _ in found]
        most: int = max(sizes)
        self._sizes = [most] * len(sizes) if [most, 1] in found else sizes
        self._real.fill_(tokens)
        return most > 0

    @property
    def even(self) -> int:
        """The number of tokens that each replica gives in this step; 0 where it is not one for all."""
        sizes = self._sizes or [0]
        return sizes[0] if len(set(sizes)) == 1 else 0

    def gather(
        self, x: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor, nobody: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [T, width], weights [T, top] of its dtype and integer ids [T, top], of this replica's tokens -> those of
        all replicas, one after the other, ids int32. Tokens that fill a step up are for the expert ``nobody``.
        """
        self._given = len(x)
        sizes = self._sizes or [len(x)] * (self.communicator.group.size // self._ranks)
        count = sizes[self._replica]
        if len(x) > count or weights.dtype != x.dtype:
            raise RuntimeError(
                f"experts were given {len(x)} tokens and weights of {weights.dtype} in a step of {count} tokens of "
                f"{x.dtype}: this model can't share experts between replicas"
            )
        ids = experts.to(torch.int32)
        if self._sizes is None:  # when it is replayed, the device alone knows how many are tokens of requests
            real = torch.arange(len(x), device=x.device)[:, None] < self._real
            ids = torch.where(real, ids, nobody)
        rest = (0, 0, 0, max(sizes) - len(x))
        ids = functional.pad(ids, rest, value=nobody).view(x.dtype)  # only bytes travel
        packed = torch.cat((functional.pad(x, rest), functional.pad(weights, rest), ids), dim=1)
        with others_named():
            every = self.communicator.all_gather(packed, 0).view(self.communicator.group.size, *packed.shape)
        parts = [part[:size] for part, size in zip(every[:: self._ranks], sizes, strict=True)]
        widths = [x.shape[1], weights.shape[1], ids.shape[1]]
        tokens, shares, chosen = torch.split(torch.cat(parts), widths, dim=1)
        return tokens.contiguous(), shares.contiguous(), chosen.contiguous().view(torch.int32)

    def add_up(self, y: torch.Tensor) -> torch.Tensor:
        """What this rank's experts add to the tokens of all replicas [T', width] -> the sum over all ranks for this
        replica's own [T, width].
        """
        sizes = self._sizes or [self._given] * self._replica
        first = sum(sizes[: self._replica])
        with others_named():
            return self.communicator.all_reduce(y)[first : first + self._given]

    def close(self) -> None:
        """Leave the others."""
        for communicator in (self.communicator, self.hosts):
            if communicator is not None:
                communicator.close()
