"""What a recurrent layer keeps: read from the cache where a row goes on, and left there where it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lsv_base.errors import ConfigError
from lsv_runtime.attention.state_plan import Run, StatePlan
from lsv_runtime.attention.states import StateLayer, StatePart
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights


@dataclass(frozen=True, slots=True)
class RowStates:
    """The states of one layer, and how the rows of a step go on from them."""

    runs: Sequence[Run]
    parts: Mapping[str, torch.Tensor]
    """[pages, *shape] each, by name."""

    def advance(
        self, name: str, compute: Callable[..., tuple[torch.Tensor, torch.Tensor]], *inputs: torch.Tensor
    ) -> torch.Tensor:
        """``compute`` over every row, from the part ``name`` of its state: inputs [T, ...] -> [T, ...].

        ``compute`` takes states [n, *shape] and n pieces of each input [n, length, ...]; it gives what comes of these
        and the states behind them.
        """
        pages = self.parts[name]
        out: torch.Tensor | None = None
        for run in self.runs:
            pieces, length = run.tokens.shape
            tokens = run.tokens.flatten()
            cut = (x.index_select(0, tokens).view(pieces, length, *x.shape[1:]) for x in inputs)
            y, states = compute(_read(pages, run), *cut)
            pages.index_copy_(0, run.targets, states.to(pages.dtype))
            if out is None:
                out = y.new_zeros(len(inputs[0]), *y.shape[2:])
            out.index_copy_(0, tokens, y.flatten(0, 1))
        assert out is not None, "a step without rows"
        return out


def _read(pages: torch.Tensor, run: Run) -> torch.Tensor:
    states = pages.index_select(0, run.sources)
    if run.fresh is None:
        return states
    return states.masked_fill_(run.fresh.view(-1, *(1,) * (states.ndim - 1)), 0)


class StateCache(nn.Module):
    """The place of a recurrent layer's states in the cache; ``layer`` gets its own once all groups are known.

    Every rank of a hybrid keeps all states, its layers declared as replicated. Where nothing else is cut, ranks would
    be of no use: raises ``ConfigError`` for a layer that is not replicated and several tensor-parallel ranks.
    """

    def __init__(self, w: Weights, index: int, parts: Sequence[StatePart]) -> None:
        super().__init__()
        if w.shard.size > 1:
            raise ConfigError(
                f"recurrent layers can't be split over {w.shard.size} ranks: use one", param="tensor_parallel_size"
            )
        self.layer = StateLayer(index, tuple(parts))

    def of(self, step: Step) -> RowStates:
        """The states of this layer in a step."""
        plan: StatePlan = step.attention[self.layer.group]
        return RowStates(plan.runs, plan.states[self.layer.group, self.layer.place])
