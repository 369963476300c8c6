"""What the emulated Gaudi counts within a context: graphs compiled for parts and for single ops.

Names of values: gaudi-pytorch-bridge v1.19.0 (5a56187), python_packages/habana_frameworks/torch/hpu/metrics/metrics.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class FakeGraphCompilation:
    """Graphs, and microseconds to compile them."""

    def __init__(self) -> None:
        self._number, self._time = 0, 0

    def add(self, microseconds: int) -> None:
        self._number += 1
        self._time += microseconds

    def stats(self) -> Sequence[tuple[str, Any]]:
        average = self._time / self._number if self._number else 0
        return [("TotalNumber", self._number), ("TotalTime", self._time), ("AvgTime", average)]


class FakeCpuFallback:
    """None: every op of torch runs on the emulated device."""

    def stats(self) -> Sequence[tuple[str, Any]]:
        return [("TotalNumber", 0), ("FallbackOps", {})]


class OpByOp(TorchDispatchMode):
    """While it is entered, an op on ``device`` counts as compiled when it comes with new shapes for the first time.

    ``paused`` leaves out the ops of a compiled part, which is one graph.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.counting: FakeGraphCompilation | None = None
        self.paused = False
        self._device, self._forms = device, set[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = None if self.paused or func.is_view else self._form(func, (args, kwargs))
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if form is not None and form not in self._forms:
            self._forms.add(form)
            if self.counting is not None:
                self.counting.add(_since(began))
        return result

    def _form(self, func: Any, arguments: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
        if not any(one.device == self._device for one in tensors):
            return None
        return func, tuple((tuple(one.shape), one.dtype) for one in tensors)


def _since(began: float) -> int:
    return int(1e6 * (time.perf_counter() - began))
