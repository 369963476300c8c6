"""lsv-demo as lsv runs it: a Llama with a small tower that sees, hears and watches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lsv.request.media import Modality
from lsv_demo.senses.inputs import FRAMES, MERGED, PATCHES, SIDE
from lsv_demo.senses.tower import LISTENS, LOOKS, levels, listen, look, merge
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import Decoder, DecoderLayer
from lsv_runtime.nn.encoder import Runs, SelfAttention, check_placeholder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.model import Encoder
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerConfig:
    """The numbers of the tower: ``senses`` in config.json."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    norm_eps: float
    tokens: Mapping[Modality, int]

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> TowerConfig:
        keys = Keys(config)
        found = cls(
            hidden_size=keys.count("hidden_size"),
            intermediate_size=keys.count("intermediate_size"),
            layers=keys.layers("num_hidden_layers"),
            heads=keys.count("num_attention_heads"),
            norm_eps=keys.take("layer_norm_eps", float),
            tokens=keys.take("tokens", dict),
        )
        keys.finish("the senses of lsv-demo")
        return found


class TowerLayer(nn.Module):
    """x [T, size] -> [T, size]."""

    def __init__(self, w: Weights, c: TowerConfig) -> None:
        super().__init__()
        self.before_attn = LayerNorm(w / "before_attn", c.hidden_size, c.norm_eps)
        self.attn = SelfAttention(w, ("qkv",), "out", c.hidden_size, c.heads)
        self.before_mlp = LayerNorm(w / "before_mlp", c.hidden_size, c.norm_eps)
        sizes = (c.hidden_size, c.intermediate_size, c.hidden_size)
        self.mlp = FeedForward(w, ("up", "down"), sizes, "gelu_pytorch_tanh")

    def forward(self, x: torch.Tensor, runs: Runs) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), runs)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Sensing:
    """An item being encoded by the tower: x [patches, size]."""

    kind: str
    x: torch.Tensor


class Senses(Encoder):
    """Takes one input, named by the item's modality: what ``lsv_demo.senses.inputs.cut`` makes of it."""

    def __init__(self, w: Weights, c: TowerConfig, size: int) -> None:
        super().__init__()
        self.parts = c.layers
        self.looks = _steps(w / "looks" / "steps", LOOKS)
        self.listens = _steps(w / "listens" / "steps", LISTENS)
        self.watch = Column.even(w, ("watch",), FRAMES * c.hidden_size, c.hidden_size, bias=True)
        self.places = nn.ParameterDict(
            {kind: (w / "places").take(kind, (count, c.hidden_size)) for kind, count in PATCHES.items()}
        )
        self.before = LayerNorm(w / "before", c.hidden_size, c.norm_eps)
        self.layers = nn.ModuleList(TowerLayer(w / "layers" / i, c) for i in range(c.layers))
        self.norm = LayerNorm(w / "norm", c.hidden_size, c.norm_eps)
        merged = {kind: count * c.hidden_size for kind, count in MERGED.items()}
        self.merge = nn.ModuleDict(
            {kind: Column.even(w / "merge", (kind,), inputs, size, bias=True) for kind, inputs in merged.items()}
        )

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> Sensing:
        ((kind, shown),) = inputs.items()
        x = self._patches(kind, levels(shown, self.norm.weight.dtype))
        return Sensing(kind, self.before(x) + self.places[kind][: len(x)])

    def advance(self, state: Sensing, part: int) -> Sensing | torch.Tensor:
        x = self.layers[part](state.x, ((1, len(state.x)),))
        if part + 1 < self.parts:
            return Sensing(state.kind, x)
        return self.merge[state.kind](merge(self.norm(x), state.kind))  # type: ignore[no-any-return]

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        return {"video": torch.zeros(FRAMES, SIDE, SIDE, 3, dtype=torch.uint8)}

    def _patches(self, kind: str, shown: torch.Tensor) -> torch.Tensor:
        if kind == "audio":
            return listen(shown[None], self.listens)[0]
        if kind == "image":
            return look(shown[None], self.looks)[0]
        return self.watch(look(shown, self.looks).transpose(0, 1).flatten(1))  # type: ignore[no-any-return]


def _steps(w: Weights, sizes: Iterable[tuple[int, int]]) -> nn.ModuleList:
    return nn.ModuleList(
        Column.even(w, (str(index),), inputs, outputs, bias=True) for index, (inputs, outputs) in enumerate(sizes)
    )


class TextLayer(DecoderLayer):
    """As in Llama (Touvron et al. 2023): x [T, hidden] -> [T, hidden]."""

    op = "layer"

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class LsvDemo(Decoder):
    """Text goes through a plain Llama; embeddings of media replace those of their placeholders."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        tower = TowerConfig.read(keys.take("senses", dict))
        c = DecoderConfig.read(keys)
        keys.finish("lsv-demo")
        for kind, token in tower.tokens.items():
            check_placeholder(f"senses.tokens.{kind}", token, c.vocab_size)
        rope = Rope(w, c.rope, max_len)
        super().__init__(w, c, (TextLayer(w / "model" / "layers" / i, c, i, rope) for i in range(c.layers)))
        self.encoder = Senses(w.replicated() / "tower", tower, c.hidden_size)
