"""The experts that replicas share, as a worker computes steps with those of the other replicas."""

from __future__ import annotations

from torch import nn

from lsv.nn.exchange import TokenExchange
from lsv.nn.moe import MoE


class SharedExperts:
    """The mixtures of a model some of whose experts are here: each is computed once in a step, by all replicas."""

    def __init__(self, model: nn.Module, exchange: TokenExchange) -> None:
        self._mixtures = [module for module in model.modules() if isinstance(module, MoE)]
        self._exchange = exchange
        exchange.begin(0)  # whoever has loaded its weights waits for the others here, and not in the first step

    def begin(self, tokens: int) -> None:
        """All replicas begin a step, in which this one has so many tokens. If it has none, and others have some, the
        mixtures are computed here and now: nothing else is.
        """
        if self._exchange.begin(tokens) and not tokens:
            for mixture in self._mixtures:
                mixture.join()
