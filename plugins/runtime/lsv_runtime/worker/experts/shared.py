"""The experts that replicas share, as a worker computes steps with those of the other replicas."""

from __future__ import annotations

from torch import nn

from lsv_runtime.nn.exchange import TokenExchange
from lsv_runtime.nn.moe import MoE


class SharedExperts:
    """The mixtures of a model some of whose experts are here: each is computed once in a step, by all replicas."""

    def __init__(self, model: nn.Module, exchange: TokenExchange) -> None:
        self._mixtures = [module for module in model.modules() if isinstance(module, MoE)]
        self._exchange = exchange

    def wait(self) -> None:
        """For the others, whoever is ready first: not in the first step."""
        self._exchange.begin(0)

    def begin(self, tokens: int, size: int, *, ready: bool) -> int:
        """All replicas begin a step, in which this one has so many tokens, and ``size`` with those that fill it up.

        The size of all where that is one and the same; a captured step must be of that size. Else 0.
        """
        self._exchange.begin(tokens, size, ready=ready)
        return self._exchange.even

    def join(self) -> None:
        """All begin a step, in which this replica has no tokens: if others have some, the mixtures are computed here
        and now, and nothing else is.
        """
        if self._exchange.begin(0):
            for mixture in self._mixtures:
                mixture.join()
