"""Gemma 3n, the text model: several streams of which one is computed (AltUp), learned residuals of low rank (LAuReL),
an input for every layer, sparse activations, and layers that read earlier layers' keys and values.

Sources: Baykal et al. 2023 (AltUp), Menghani et al. 2024 (LAuReL), transformers' ``Gemma3nTextModel``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.gemma.sharing import LayerInput, LayerInputs, attention_of, bare_names, find_sources, unused_names
from lsv_models.rms.blocks import SandwichLayer
from lsv_runtime import products
from lsv_runtime.nn.attention import Attention
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.embed import Embed, ScaledEmbed
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, plain_linear
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

_SMALLEST = 1e-5
"""Of the mean square that a stream is divided by the root of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3nConfig(DecoderConfig):
    """The numbers of Gemma 3n beside those of every decoder."""

    streams: int = 4
    active: int = 0
    """The stream that layers compute; the others are predicted from all, and corrected by how wrong its prediction was.
    """
    scaled: bool = True
    """Whether the computed stream is scaled by learned factors before it meets the layer's input."""
    laurel: int = 64
    """The rank of the learned residual."""
    input_size: int = 256
    """Numbers of a layer's input."""
    input_rows: int = 262144
    sources: tuple[int | None, ...] = ()
    """For each layer the one whose keys and values it reads; None where it has its own."""
    sparsities: tuple[float, ...] = ()
    """For each layer the share of inner features that are to be zero."""
    inner: tuple[int, ...] = ()
    """The inner features of each layer."""


def _read_sparsities(keys: Keys, layers: int) -> tuple[float, ...]:
    given = keys.maybe("activation_sparsity_pattern", object)
    if given is None:
        given = [0.95 if layers > 10 and layer < 10 else 0.0 for layer in range(layers)]
    numbers = given if isinstance(given, list) else [given] * layers
    if len(numbers) != layers or not all(type(one) in (int, float) and 0 <= one < 1 for one in numbers):
        raise CheckpointError(
            f"config.json: activation_sparsity_pattern must be {layers} numbers from 0 to below 1, got {given!r:.100}"
        )
    return tuple(map(float, numbers))


class SparseGatedMLP(GatedMLP):
    """One whose gate is cut off where ``sparsity`` of its features would lie, were they normally distributed; the rest
    are what they have above that.
    """

    op: ClassVar[str] = "gated_mlp.sparse"

    def __init__(self, w: Weights, hidden_size: int, inner: int, activation: str, *, sparsity: float) -> None:
        super().__init__(w, hidden_size, inner, activation)
        self.deviations, self.ranks = NormalDist().inv_cdf(sparsity), w.shard.size

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        both = self.gate_up(x)
        gate = both[..., : both.shape[-1] // 2]
        mean, deviation = self._spread(gate)
        gate.sub_(mean + deviation * self.deviations).relu_()
        return self.down(self.act(both))  # type: ignore[no-any-return]

    def _spread(self, gate: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation over the features of all ranks, of which each has equally many: [T, 1] each."""
        if self.down.communicator is None:
            return gate.mean(-1, keepdim=True), gate.std(-1, correction=0, keepdim=True)
        variance, mean = torch.var_mean(gate.float(), -1, correction=0, keepdim=True)
        moments = torch.cat((mean, variance + mean.square()), dim=-1)
        mean, square = (self.down.communicator.all_reduce(moments) / self.ranks).split(1, dim=-1)
        return mean.type_as(gate), (square - mean.square()).clamp(min=0.0).sqrt().type_as(gate)


class AltUp(nn.Module):
    """Alternating updates of streams [T, streams, hidden]: small weights, which no format quantises."""

    def __init__(self, w: Weights, c: Gemma3nConfig) -> None:
        super().__init__()
        count, self.active, self.hidden = c.streams, c.active, c.hidden_size
        self.corrections = plain_linear(w / "correction_coefs", count, count)
        self.predictions = plain_linear(w / "prediction_coefs", count, count * count)
        self.router = plain_linear(w / "modality_router", c.hidden_size, count)
        self.norm = RMSNorm(w / "router_norm", c.hidden_size, c.norm_eps)
        self.scale = w.take("correct_output_scale", (c.hidden_size,))
        self.scaled = c.scaled

    def predict(self, streams: torch.Tensor) -> torch.Tensor:
        """All streams behind the layer, guessed from those before it."""
        mixing = self.predictions(self._route(streams[:, self.active]))
        return streams + products.matmul(mixing.unflatten(-1, (streams.shape[1], -1)), streams)

    def correct(self, predicted: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
        """The predicted streams, moved by what the layer computed beyond the active one's prediction."""
        factors = self.corrections(self._route(computed)) + 1.0
        surprise = computed - predicted[:, self.active]
        return torch.addcmul(predicted, surprise[:, None], factors[:, :, None])

    def shown(self, streams: torch.Tensor) -> torch.Tensor:
        """The active stream as it meets the layer's input."""
        x = streams[:, self.active]
        return x * self.scale if self.scaled else x

    def _route(self, x: torch.Tensor) -> torch.Tensor:
        routed = self.router(self.norm(x) * (1.0 / self.hidden))
        return torch.tanh(routed.float()).type_as(x)


class Laurel(nn.Module):
    """A learned residual of low rank: x [T, hidden] -> [T, hidden]."""

    def __init__(self, w: Weights, c: Gemma3nConfig) -> None:
        super().__init__()
        alone = w.replicated()
        self.left = Column.even(alone, ["linear_left"], c.hidden_size, c.laurel)
        self.right = Column.even(alone, ["linear_right"], c.laurel, c.hidden_size)
        self.norm = RMSNorm(w / "post_laurel_norm", c.hidden_size, c.norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.right(self.left(x)))  # type: ignore[no-any-return]


class Gemma3nLayer(SandwichLayer):
    """[T, streams * hidden + inputs of this and the following layers] -> the same without this layer's input."""

    qk_norm = True

    def __init__(self, w: Weights, c: Gemma3nConfig, layer: int, rope: Rope | None) -> None:
        sparsity = c.sparsities[layer]
        sizes = (c.hidden_size, c.inner[layer], c.activation)
        mlp = SparseGatedMLP(w / "mlp", *sizes, sparsity=sparsity) if sparsity else GatedMLP(w / "mlp", *sizes)
        super().__init__(w, c, layer, rope, mlp)
        self.altup = AltUp(w / "altup", c)
        self.laurel = Laurel(w / "laurel", c)
        self.input = LayerInput(w, c.hidden_size, c.input_size, c.activation, c.norm_eps)
        self.sizes = (c.streams * c.hidden_size, c.input_size)
        self.streams = c.streams

    def make_attention(
        self, w: Weights, c: DecoderConfig, layer: int, rope: Rope | None, kind: type[Attention], **more: Any
    ) -> Attention:
        assert isinstance(c, Gemma3nConfig)
        kind, given = attention_of(c.sources[layer])
        return super().make_attention(w, c, layer, rope, kind, **given, **more)

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        wide, size = self.sizes
        given, later = x[:, wide : wide + size], x[:, wide + size :]
        predicted = self.altup.predict(x[:, :wide].unflatten(-1, (self.streams, -1)))
        streams = self.altup.correct(predicted, self._compute(predicted[:, self.altup.active], step))
        streams[:, 1:] += self.input(self.altup.shown(streams), given)[:, None]
        return torch.cat((streams.flatten(1), later), dim=1)

    def _compute(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """The block itself: x [T, hidden] -> [T, hidden]."""
        normed = self.before_attn(x)
        x = x + self.after_attn(self.attn(normed, step))
        x = (x + self.laurel(normed)) * (1.0 / math.sqrt(2.0))
        return x + self.after_mlp(self.mlp(self.before_mlp(x)))  # type: ignore[no-any-return]


class Streams(nn.Module):
    """Embeddings with their layer inputs -> the streams that layers begin with, and these inputs."""

    def __init__(self, w: Weights, inputs: LayerInputs, c: Gemma3nConfig) -> None:
        super().__init__()
        self.inputs, self.hidden = inputs, c.hidden_size
        self.others = _projections(w, "altup_projections", c)

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        x = self.inputs(ids, step)
        first, inputs = x[:, : self.hidden], x[:, self.hidden :]
        others = (_as_large(other(first), first) for other in self.others)
        return torch.cat((first, *others, inputs), dim=1)


class StreamsNorm(nn.Module):
    """The mean of all streams, brought back and normed: [R, streams * hidden] -> [R, hidden]."""

    def __init__(self, w: Weights, norm: nn.Module, c: Gemma3nConfig) -> None:
        super().__init__()
        self.norm = norm
        self.others = _projections(w, "altup_unembed_projections", c)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        first, *others = rows.chunk(1 + len(self.others), dim=1)
        back = [_as_large(own(x), first) for own, x in zip(self.others, others, strict=True)]
        return self.norm(torch.stack((first, *back)).mean(0))  # type: ignore[no-any-return]


def _projections(w: Weights, name: str, c: Gemma3nConfig) -> nn.ModuleList:
    """One for each stream but the first."""
    alone, size = w.replicated() / name, c.hidden_size
    return nn.ModuleList(Column.even(alone, [str(number)], size, size) for number in range(c.streams - 1))


def _as_large(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """x [T, hidden] scaled to the mean square of ``like``."""
    wanted, own = (one.square().mean(-1, keepdim=True) for one in (like, x))
    return x * wanted.sqrt() / own.clamp(min=_SMALLEST).sqrt()


class Gemma3n(DenseDecoder):
    prefixes = bare_names("altup_projections", "altup_unembed_projections")
    layer = Gemma3nLayer
    staged = False  # layers have inputs of their own, and read what others keep
    defaults: ClassVar[Mapping[str, Any]] = {
        "head_dim": 256, "tied": True, "full_every": 5, "rope_theta": 1e6, "local_theta": 10000.0,
    }  # fmt: skip
    keys: ClassVar[Mapping[str, str]] = {"hidden_act": "hidden_activation"}

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        inner = config.get("intermediate_size")
        if isinstance(inner, list):  # one for each layer
            config = {**config, "intermediate_size": inner[0] if inner else None, "intermediate_sizes": inner}
        super().__init__(w, config, max_len)
        c, place = self.c, w / "model"
        assert isinstance(self.embed, Embed | ScaledEmbed)
        sizes = (c.hidden_size, c.layers)
        inputs = LayerInputs(place, self.embed, sizes, c.input_rows, c.input_size, c.norm_eps)
        self.embed: Any = Streams(place, inputs, c)
        self.norm: Any = StreamsNorm(place, self.norm, c)
        self.ignores = (*self.ignores, *unused_names(c.sources))

    def read(self, keys: Keys) -> DecoderConfig:
        keys.count("sliding_window")
        keys.skip("altup_coef_clip")  # clips weights in training
        common = Gemma3nConfig.read(keys, **{"activation": "gelu_pytorch_tanh", **self.defaults})
        assert isinstance(common, Gemma3nConfig)
        self.c = replace(
            common,
            embedding_multiplier=common.hidden_size**0.5,
            attention_scale=1.0,
            logit_cap=keys.maybe("final_logit_softcapping", float, 30.0),
            streams=keys.count("altup_num_inputs", 4),
            active=keys.take("altup_active_idx", int, 0),
            scaled=keys.take("altup_correct_scale", bool, True),
            laurel=keys.count("laurel_rank", 64),
            input_size=keys.count("hidden_size_per_layer_input", 256),
            input_rows=keys.count("vocab_size_per_layer_input", 262144),
            sources=find_sources(common.windows, keys.take("num_kv_shared_layers", int, 15)),
            sparsities=_read_sparsities(keys, common.layers),
            inner=_read_inner(keys, common),
        )
        if not 0 <= self.c.active < self.c.streams:
            raise CheckpointError(
                f"config.json: altup_active_idx={self.c.active} is not one of {self.c.streams} streams"
            )
        return self.c


def _read_inner(keys: Keys, c: DecoderConfig) -> tuple[int, ...]:
    sizes = keys.maybe("intermediate_sizes", list) or [c.intermediate_size] * c.layers
    if len(sizes) != c.layers or not all(type(size) is int and size > 0 for size in sizes):
        raise CheckpointError(
            f"config.json: intermediate_size must be a positive number, or one for each of {c.layers} layers, "
            f"got {sizes!r:.100}"
        )
    return tuple(sizes)
