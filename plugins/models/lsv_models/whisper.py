"""Whisper (Radford et al. 2022): a tower over half a minute of audio, and a decoder that attends to its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError, ConfigError
from lsv_runtime import products
from lsv_runtime.nn.attention import Attention, CrossAttention
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.encoder import Runs, SelfAttention
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import FeedForward
from lsv_runtime.nn.model import AttentionModel, Encoder
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

_EPS = 1e-5
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_UNBIASED = ("k_proj",)
# keys of training, of generation, and of other heads over the same tower
_BESIDE = (
    "activation_dropout", "apply_spec_augment", "begin_suppress_tokens", "classifier_proj_size",
    "decoder_layerdrop", "decoder_start_token_id", "dropout", "encoder_layerdrop", "forced_decoder_ids", "init_std",
    "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob", "mask_time_length", "mask_time_min_masks",
    "mask_time_prob", "max_length", "median_filter_width", "num_hidden_layers", "suppress_tokens",
    "use_weighted_layer_sum",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WhisperConfig:
    """The numbers of a checkpoint; ``source`` and ``target`` count the positions of tower and decoder."""

    vocab_size: int
    hidden_size: int
    bins: int
    source: int
    target: int
    tower_layers: int
    tower_heads: int
    tower_inner: int
    layers: int
    heads: int
    inner: int
    activation: str
    tied: bool

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> WhisperConfig:
        """Raises ``CheckpointError`` for keys that are missing, malformed or unknown."""
        keys = Keys(config)
        for name in _BESIDE:
            keys.maybe(name, object)
        found = cls(
            vocab_size=keys.count("vocab_size"),
            hidden_size=keys.count("d_model"),
            bins=keys.count("num_mel_bins", 80),
            source=keys.count("max_source_positions", 1500),
            target=keys.count("max_target_positions", 448),
            tower_layers=keys.layers("encoder_layers"),
            tower_heads=keys.count("encoder_attention_heads"),
            tower_inner=keys.count("encoder_ffn_dim"),
            layers=keys.layers("decoder_layers"),
            heads=keys.count("decoder_attention_heads"),
            inner=keys.count("decoder_ffn_dim"),
            activation=keys.take("activation_function", str, "gelu"),
            tied=keys.take("tie_word_embeddings", bool, True),
        )
        keys.finish("Whisper")
        for heads in (found.heads, found.tower_heads):
            if found.hidden_size % heads:
                raise CheckpointError(f"config.json: d_model={found.hidden_size} is not a multiple of {heads} heads")
        return found

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def norm_eps(self) -> float:
        return _EPS

    @property
    def windows(self) -> tuple[None, ...]:
        return (None,) * self.layers


class Stem(nn.Module):
    """Two convolutions over time: ``bins`` of a spectrum [N, bins, frames] -> [N, (frames + 1) / 2, size]."""

    def __init__(self, w: Weights, bins: int, size: int) -> None:
        super().__init__()
        inputs = (("conv1", bins), ("conv2", size))
        self.first, self.second = ((w / name).take("weight", (size, n, 3)) for name, n in inputs)
        self.first_bias, self.second_bias = ((w / name).take("bias", (size,)) for name, _ in inputs)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = features.to(self.first.dtype)
        x = functional.gelu(products.convolve(x, self.first, self.first_bias, padding=1))
        x = functional.gelu(products.convolve(x, self.second, self.second_bias, stride=2, padding=1))
        return x.transpose(1, 2)


class TowerLayer(nn.Module):
    """x [T, size] -> [T, size]; ``sizes`` are those of a token and inside the MLP."""

    out: ClassVar[str] = "o_proj"
    unbiased: ClassVar[tuple[str, ...]] = _UNBIASED

    def __init__(self, w: Weights, sizes: tuple[int, int], heads: int, activation: str) -> None:
        super().__init__()
        size, inner = sizes
        self.before_attn = LayerNorm(w / "self_attn_layer_norm", size, _EPS)
        self.attn = SelfAttention(w / "self_attn", _PROJECTIONS, self.out, size, heads, unbiased=self.unbiased)
        self.before_mlp = LayerNorm(w / "final_layer_norm", size, _EPS)
        self.mlp = FeedForward(w, ("fc1", "fc2"), (size, inner, size), activation)

    def forward(self, x: torch.Tensor, runs: Runs, unseen: int = 0) -> torch.Tensor:
        """``unseen`` is that of ``SelfAttention``."""
        x = x + self.attn(self.before_attn(x), runs, unseen=unseen)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class Tower(Encoder):
    """Takes ``features`` [bins, frames], the log of a mel spectrogram, of 2 * source frames: [source, hidden]."""

    def __init__(self, w: Weights, c: WhisperConfig) -> None:
        super().__init__()
        self.parts = c.tower_layers
        size = c.hidden_size
        self.stem, self.bins = Stem(w, c.bins, size), c.bins
        self.places = (w / "embed_positions").take("weight", (c.source, size))
        shape = (size, c.tower_inner), c.tower_heads, c.activation
        self.layers = nn.ModuleList(TowerLayer(w / "layers" / i, *shape) for i in range(c.tower_layers))
        self.norm = LayerNorm(w / "layer_norm", size, _EPS)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        x = self.stem(inputs["features"][None])[0]
        return x + self.places[: len(x)]  # type: ignore[no-any-return]

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        return {"features": torch.zeros(self.bins, 2 * len(self.places))}

    def advance(self, state: torch.Tensor, part: int) -> torch.Tensor:
        x: torch.Tensor = self.layers[part](state, ((1, len(state)),))
        return self.norm(x) if part + 1 == self.parts else x


class WhisperLayer(nn.Module):
    """A pre-norm block that attends to the tokens so far, then to the audio."""

    def __init__(self, w: Weights, c: WhisperConfig, layer: int) -> None:
        super().__init__()
        size, place = c.hidden_size, w / "encoder_attn"
        self.before_attn = LayerNorm(w / "self_attn_layer_norm", size, _EPS)
        self.attn = Attention(w / "self_attn", c, layer, None, qkv_bias=True, out_bias=True, unbiased=_UNBIASED)
        self.before_cross = LayerNorm(w / "encoder_attn_layer_norm", size, _EPS)
        self.cross = CrossAttention(place, c, c.layers + layer, c.source, bias=True, unbiased=_UNBIASED)
        self.before_mlp = LayerNorm(w / "final_layer_norm", size, _EPS)
        self.mlp = FeedForward(w, ("fc1", "fc2"), (size, c.inner, size), c.activation)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.before_attn(x), step)
        x = x + self.cross(self.before_cross(x), step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class Whisper(AttentionModel):
    """Transcribes or translates."""

    staged = True

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__()
        c = WhisperConfig.read(config)
        if max_len > c.target:
            raise ConfigError(
                f"max_model_len={max_len} is more than the {c.target} positions the model has", param="max_model_len"
            )
        place, size = w / "model" / "decoder", c.hidden_size
        self.vocab_size = c.vocab_size
        self.tokens = Embed(place / "embed_tokens", c.vocab_size, size)
        self.places = (place / "embed_positions").take("weight", (c.target, size))
        self.layers = nn.ModuleList(WhisperLayer(place / "layers" / i, c, i) for i in range(c.layers))
        self.norm = LayerNorm(place / "layer_norm", size, _EPS)
        self.head = Head(w / "proj_out", c.vocab_size, size, tied=self.tokens if c.tied else None)
        self.encoder = Tower(w.replicated() / "model" / "encoder", c)

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return self.tokens(ids, step) + self.places[step.positions[0]]  # type: ignore[no-any-return]

    def rename(self, name: str) -> str:
        return name.replace(".out_proj.", ".o_proj.")
