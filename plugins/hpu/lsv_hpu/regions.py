"""Regional compilation: the parts of a model are compiled, each for every shape, and layers that are alike as one.

A graph of a whole step grows with the number of layers, and so does the time to compile it for each of many shapes.
Source: vllm-gaudi 091bbad, vllm_gaudi/v1/worker/hpu_model_runner.py, _regional_compilation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lsv_runtime.attention import AttentionLayer
from lsv_runtime.devices.device import StepFn
from lsv_runtime.nn.attention import Attention, CrossAttention
from lsv_runtime.nn.exchange import TokenExchange
from lsv_runtime.nn.model import Model
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.step import Step


def run_part(part: Callable[..., Any], *arguments: Any) -> Any:
    """What is compiled: one function for all parts, so that parts of the same form share what came of it."""
    return part(*arguments)


class Parts:
    """Those of a model; ``compiled`` is ``run_part`` as it was compiled. They are run by it within ``run`` alone: a
    step of a shape that was not warmed up runs op by op, and does not wait for a compiler.
    """

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self._compiled = compiled
        self.compiling = False

    def divide(self, model: Model) -> None:
        """Have each layer of ``model``, its embedding, norm and head be a part."""
        for place, layer in enumerate(model.layers):
            model.layers[place] = LayerRegion(layer, self)
        for name in ("embed", "norm", "head"):
            setattr(model, name, Region(getattr(model, name), self))
        for exchange in {one.exchange for one in model.modules() if isinstance(one, MoE) and one.exchange is not None}:
            keep_apart(exchange)

    def run(self, step: StepFn) -> Any:
        self.compiling = True
        try:
            return step()
        finally:
            self.compiling = False

    def run_part(self, part: nn.Module, *arguments: Any) -> Any:
        """Run a part, compiled or op by op. A compiled part is not given the step's taps: no part reads them, and they
        hold states only after the step has run once, which would count as another form.
        """
        return self._compiled(part, *map(_without_taps, arguments)) if self.compiling else part(*arguments)


def _without_taps(argument: Any) -> Any:
    return replace(argument, taps=None) if isinstance(argument, Step) and argument.taps is not None else argument


def keep_apart(exchange: TokenExchange) -> None:
    """Have what replicas exchange run op by op within compiled parts: how much that is changes with each step."""
    for name in ("gather", "add_up"):
        setattr(exchange, name, torch.compiler.disable(getattr(exchange, name)))


class Region(nn.Module):
    """A part of a model that can be compiled."""

    def __init__(self, part: nn.Module, parts: Parts) -> None:
        super().__init__()
        self.part, self._parts = part, parts

    def forward(self, *arguments: Any) -> Any:
        return self._parts.run_part(self.part, *arguments)


class LayerRegion(Region):
    """A layer: (x, step) -> x. Of the cache it is given its own tensors alone, so that none of what it is compiled to
    names its place in there. Layers without attention of their own, or with more, are given the whole cache.
    """

    def __init__(self, part: nn.Module, parts: Parts) -> None:
        super().__init__(part, parts)
        found = [one.layer for one in part.modules() if isinstance(one, Attention | CrossAttention)]
        self._layer: AttentionLayer | None = found[0] if len(found) == 1 else None
        self._whole: Any = None
        self._own: Any = None

    def forward(self, x: Any, step: Step) -> Any:
        if self._layer is not None and step.cache is not None:
            if step.cache is not self._whole:
                self._whole, self._own = step.cache, step.cache.of(self._layer)
            step = replace(step, cache=self._own)
        return self._parts.run_part(self.part, x, step)
