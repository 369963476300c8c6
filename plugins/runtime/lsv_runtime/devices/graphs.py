"""Graphs of a device's work: capturing a step, and finding out whether its replay computes what the step does."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lsv_runtime.devices.device import Fill, StepFn

_TOLERANCE = 2e-2
"""How far a replayed row may be off the row launched op by op, relative to its length: libraries may choose other
kernels while they capture, which round differently.
"""
_AT_ONCE = 1 << 24
"""Numbers that are compared together: logits of many rows take memory, and comparing them several times as much."""


class CapturingRuntime(Protocol):
    """The functions for capturing that torch's modules for kinds of devices agree on."""

    def graph(self, graph: Any, /, *, pool: Any = None) -> AbstractContextManager[Any]: ...
    def current_stream(self) -> Any: ...
    def set_stream(self, stream: Any, /) -> None: ...


class Graphs:
    """Recordings of a device's work, which it replays at the cost of one launch.

    ``make`` gives an empty one; what runs inside ``runtime.graph(graph, pool=…)`` is recorded in it. All share one
    pool of memory, since only one runs at a time; the pool lasts as long as the graph that was captured first.
    """

    def __init__(self, make: Callable[[], Any], runtime: CapturingRuntime) -> None:
        self._make, self._runtime = make, runtime
        self._first: Callable[[], Any] = lambda: None

    def capture(self, step: StepFn) -> StepFn:
        """The step as a graph. Raises whatever goes wrong.

        The stream that is current before is current again in any case: torch's own way out of a capture that failed
        leaves the side stream in its place, and work would be given to a stream nobody waits for.
        """
        graph, stream, first = self._make(), self._runtime.current_stream(), self._first()
        try:
            with self._runtime.graph(graph, pool=None if first is None else first.pool()):
                result = step()
        finally:
            self._runtime.set_stream(stream)
        if first is None:
            self._first = weakref.ref(graph)

        def replay() -> Any:
            graph.replay()
            return result

        return replay


def find_difference(step: StepFn, replay: StepFn, fillings: Sequence[Fill]) -> str | None:
    """None where the replay gives what the step does with every one of ``fillings`` in its buffers, else what differs.

    The replay comes first: what it fails to write, the step has not written for it. Without fillings, the values that
    are there are the only ones.
    """
    distances = []
    for fill in fillings or (_keep,):  # all of them: other ranks compute along
        fill()
        replayed = [leaf.clone() for leaf in tree_leaves(replay())]  # the step may write to the same tensors
        distances.append(_distance(tree_leaves(step()), replayed))
    wrong = [distance for distance in distances if not distance <= _TOLERANCE]
    return f"off by {wrong[0]:.2g}" if wrong else None


def _keep() -> None:
    """Fill in nothing."""


def _distance(right: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """How far the worst row is off, relative to its length; NaN where one has NaN alone."""
    worst = 0.0
    for one, two in zip(right, other, strict=True):
        width = max(1, one.shape[-1] if one.ndim else 1)
        pairs = (torch.split(x.reshape(-1, width), max(1, _AT_ONCE // width)) for x in (one, two))
        for rows, others in zip(*pairs, strict=True):
            some, same = rows.float(), others.float()
            if not torch.equal(some.isnan(), same.isnan()):
                return float("nan")
            length = some.nan_to_num().norm(dim=1).clamp(min=1e-6)
            worst = max(worst, float(((some - same).nan_to_num().norm(dim=1) / length).max()))
    return worst
