"""Ops that tell the profiler their names, so that a trace shows which layer calls what."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from torch.profiler import record_function

from lsv_runtime.ops import Bindable


class NamedOps:
    """From now on every bindable module of a model is a range of the trace, ``model.layers.0.mlp (mlp)``, until
    ``restore``. What several layers' kernel does at once is a range of the outermost alone, and what is replayed from a
    captured graph has none.
    """

    def __init__(self, model: nn.Module) -> None:
        self._before: list[tuple[Bindable, Any]] = []
        for path, module in model.named_modules():
            if isinstance(module, Bindable):
                self._before.append((module, module.__dict__.get("forward")))
                module.__dict__["forward"] = _named(f"{path} ({module.op})", module.forward)

    def restore(self) -> None:
        for module, before in self._before:
            if before is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = before
        self._before.clear()


def _named(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return forward(*args, **kwargs)

    return call
