"""Decoders with experts: what their config.json and their checkpoints have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from lsv_models.llama import LlamaLayer
from lsv_models.sparse.experts import Experts, make_mlp
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import Decoder, DecoderLayer
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.stacks import Stack

STACKED = (
    Stack(r"(.*\.experts)\.gate_up_proj", ("gate_proj.weight", "up_proj.weight")),
    Stack(r"(.*\.experts)\.down_proj", ("down_proj.weight",)),
)
"""The experts of a layer in two tensors, which any family's checkpoint may have."""


class SparseDecoder(Decoder):
    """A decoder whose config.json has the keys of all decoders and those that ``read_experts`` takes."""

    layer: ClassVar[type[DecoderLayer]] = LlamaLayer
    defaults: ClassVar[Mapping[str, Any]] = {}
    """The family's values for what config.json may leave out."""
    common: ClassVar[Mapping[str, Any]] = {}
    """How it reads the keys of all decoders: arguments of ``DecoderConfig.read``."""
    rope: ClassVar[type[Rope]] = Rope
    mlp: ClassVar[str] = "mlp"
    """Where a layer's feed-forward block is."""
    stacks = STACKED

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        given = {key: value for key, value in config.items() if value is not None or key not in self.defaults}
        keys = Keys({**self.defaults, **given})
        c = self.read(keys)
        experts = self.read_experts(keys, c)
        self.read_more(keys, c)
        keys.finish(type(self).__name__)
        rope = self.rope(w, c.rope, max_len)
        places = [w / "model" / "layers" / number for number in range(c.layers)]
        layers = (
            self.make_layer(place, c, number, rope, self.make_mlp(place / self.mlp, c, number, experts))
            for number, place in enumerate(places)
        )
        super().__init__(w, c, layers, self.layer.norm)

    def read(self, keys: Keys) -> DecoderConfig:
        """The numbers that all decoders have."""
        return DecoderConfig.read(keys, **self.common)

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        raise NotImplementedError

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        """Take what else the family has."""

    def make_mlp(self, w: Weights, c: DecoderConfig, layer: int, experts: Experts) -> Bindable:
        return make_mlp(w, c, layer, experts)

    def make_layer(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, mlp: Bindable) -> DecoderLayer:
        return self.layer(w, c, layer, rope, mlp)


class PlainLayerNorm(LayerNorm):
    """Layer normalisation without a bias."""

    def __init__(self, w: Weights, size: int, eps: float) -> None:
        super().__init__(w, size, eps, bias=False)
