"""RWKV 4: layers that mix each token with the one before, and average values with weights that fade."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lsv_models.recurrent.stack import Names, Stack
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.recurrent.states import RowStates, StateCache
from lsv_runtime.nn.recurrent.wkv import TokenShift, WeighedAverage
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

_LAST_EPS = 1e-5
"""Of the norm before the head, whatever the model's own."""


class Mixes(nn.Module):
    """A token and the one before in shares, once for every name: x [T, size] -> [T, size] for each."""

    def __init__(self, w: Weights, size: int, names: tuple[str, ...], part: str) -> None:
        super().__init__()
        self.shares = nn.ParameterList(w.take(f"time_mix_{name}", (1, 1, size)) for name in names)
        self.shift = TokenShift(w, size, part)

    def forward(self, x: torch.Tensor, states: RowStates) -> list[torch.Tensor]:
        before = self.shift(x, states)
        return [x * share.flatten() + before * (1 - share.flatten()) for share in self.shares]


class TimeMixer(nn.Module):
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, w: Weights, hidden: int, inner: int) -> None:
        super().__init__()
        self.mixes = Mixes(w, hidden, ("key", "value", "receptance"), "before")
        self.key, self.value, self.gate = (
            Column.even(w, (name,), hidden, inner) for name in ("key", "value", "receptance")
        )
        self.scan = WeighedAverage(w, inner)
        self.out = Row(w, "output", inner, hidden, reads=(0, inner))

    def forward(self, x: torch.Tensor, states: RowStates) -> torch.Tensor:
        key, value, gate = self.mixes(x, states)
        y = self.scan(self.key(key), self.value(value), states).to(x.dtype)
        return self.out(torch.sigmoid(self.gate(gate)) * y)  # type: ignore[no-any-return]


class ChannelMixer(nn.Module):
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, w: Weights, hidden: int, inner: int) -> None:
        super().__init__()
        self.mixes = Mixes(w, hidden, ("key", "receptance"), "before_mlp")
        self.key = Column.even(w, ("key",), hidden, inner)
        self.value = Row(w, "value", inner, hidden, reads=(0, inner))
        self.gate = Column.even(w, ("receptance",), hidden, hidden)

    def forward(self, x: torch.Tensor, states: RowStates) -> torch.Tensor:
        key, gate = self.mixes(x, states)
        return torch.sigmoid(self.gate(gate)) * self.value(self.key(key).relu().square())  # type: ignore[no-any-return]


class RwkvLayer(nn.Module):
    """x [T, hidden] -> [T, hidden]. The first layer has a norm of its own before all others.

    What it adds is halved ``halvings`` times, and its sum once more where it is ``halved``: float16 goes no further.
    """

    def __init__(
        self, w: Weights, sizes: tuple[int, int, int], eps: float, index: int, *, halvings: int, halved: bool
    ) -> None:
        super().__init__()
        hidden, inner, wide = sizes
        self.first = LayerNorm(w / "pre_ln", hidden, eps) if index == 0 else None
        self.before_time, self.before_channels = (LayerNorm(w / name, hidden, eps) for name in ("ln1", "ln2"))
        self.time, self.channels = (
            TimeMixer(w / "attention", hidden, inner),
            ChannelMixer(w / "feed_forward", hidden, wide),
        )
        parts = (self.time.mixes.shift.part, self.time.scan.part, self.channels.mixes.shift.part)
        self.cache = StateCache(w, index, parts)
        self.share, self.whole = 0.5**halvings, 0.5 if halved else 1.0

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        states = self.cache.of(step)
        x = x if self.first is None else self.first(x)
        x = x + self.time(self.before_time(x), states) * self.share
        return (x + self.channels(self.before_channels(x), states) * self.share) * self.whole


class Rwkv(Stack):
    make_norm = LayerNorm

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        hidden, layers = keys.count("hidden_size"), keys.layers("num_hidden_layers")
        sizes = (hidden, keys.count("attention_hidden_size", hidden), keys.count("intermediate_size", 4 * hidden))
        eps, every = keys.take("layer_norm_epsilon", float, 1e-5), keys.take("rescale_every", int, 6)
        vocabulary, tied = keys.count("vocab_size"), keys.take("tie_word_embeddings", bool, False)
        keys.skip("context_length", "num_attention_heads", "num_key_value_heads")
        keys.finish("Rwkv")
        place, period = w / "rwkv" / "blocks", every if every > 0 else layers + 1
        blocks = (
            RwkvLayer(place / i, sizes, eps, i, halvings=i // period, halved=(i + 1) % period == 0)
            for i in range(layers)
        )
        names = Names("rwkv.embeddings", "rwkv.ln_out", "head")
        super().__init__(w, (vocabulary, hidden), blocks, eps=_LAST_EPS, tied=tied, names=names)
