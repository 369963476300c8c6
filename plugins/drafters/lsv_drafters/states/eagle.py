"""EAGLE's heads: a layer or a few that go on with the states of the model that answers.

Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (2024), reads the model's last states;
"EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025) those of three
layers in between. Both in the format of the authors and of vLLM; of what heads say the likeliest path is verified.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lsv_base.errors import CheckpointError
from lsv_runtime import products
from lsv_runtime.drafts.reader import StateReader, read_layers
from lsv_runtime.nn.attention import Attention, Heads
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Piece, Weights

_USUAL = 3
"""States of so many layers are read where config.json does not say which."""


class EagleLayer(DecoderLayer):
    """The first layer, whose input is not normed: x [T, hidden] -> [T, hidden]."""

    op = "layer.eagle"
    norms: ClassVar[Mapping[str, str]] = {"before_mlp": "post_attention_layernorm"}

    def reference(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attn(x, step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class FurtherLayer(DecoderLayer):
    op = "layer"

    def reference(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attn(self.before_attn(x), step)
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class WideAttention(Attention):
    """Reads twice as many numbers as it writes."""

    variation = "wide"


class Eagle3Layer(nn.Module):
    """The first layer, which reads embeddings and states: x [T, 2 * hidden] -> [T, hidden]."""

    def __init__(self, w: Weights, c: DecoderConfig, rope: Rope, *, normed: bool) -> None:
        """``normed`` has what the layer adds to be the normed states."""
        super().__init__()
        self.normed = normed
        self.before_attn = RMSNorm(w / "input_layernorm", c.hidden_size, c.norm_eps)
        self.before_states = RMSNorm(w / "hidden_norm", c.hidden_size, c.norm_eps)
        own = w / "self_attn"
        wide = dataclasses.replace(c, hidden_size=2 * c.hidden_size)
        self.attn = WideAttention(
            own, wide, 0, rope, qkv_bias=c.attention_bias, out_bias=c.attention_out_bias, heads=Heads(own, c)
        )
        self.before_mlp = RMSNorm(w / "post_attention_layernorm", c.hidden_size, c.norm_eps)
        self.mlp = GatedMLP(w / "mlp", c.hidden_size, c.intermediate_size, c.activation, bias=c.mlp_bias)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        embedded, states = x.chunk(2, dim=-1)
        normed = self.before_states(states)
        y = self.attn(torch.cat((self.before_attn(embedded), normed), dim=-1), step)
        x = (normed if self.normed else states) + y
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]


class Eagle(StateReader):
    """By ``names``, those of the checkpoint's tensors, it knows what config.json does not say."""

    ignores = (r"(^|\.)rotary_emb\.inv_freq$", r"^t2d$")

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int, names: Collection[str]) -> None:
        super().__init__()
        c = DecoderConfig.read(Keys(config))
        self.dtype, self.vocab_size, self.hidden = w.dtype, c.vocab_size, c.hidden_size
        self.embed_tokens = Embed(w / "embed_tokens", c.vocab_size, c.hidden_size)
        self.rope = Rope(w, c.rope, max_len)
        self.fc = w.take("fc.weight", self.fc_shape(c, config))
        self.fc_bias = w.take("fc.bias", (c.hidden_size,)) if "fc.bias" in names else None
        further = (FurtherLayer(w / "layers" / i, c, i, self.rope) for i in range(1, c.layers))
        self.layers = nn.ModuleList((self.first_layer(w / "layers" / 0, c, config), *further))
        self.norm = nn.Identity()
        self.make_head(w, c, config, names)

    @staticmethod
    def rename_tensor(name: str) -> str:
        """A published name of a tensor -> the one that is declared."""
        name = name.removeprefix("model.")
        return f"layers.0.{name.removeprefix('midlayer.')}" if name.startswith("midlayer.") else name

    def rename(self, name: str) -> str:
        return self.rename_tensor(name)

    @staticmethod
    def taps(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
        """What it reads of a model with so many layers."""
        return (layers,)

    def fc_shape(self, c: DecoderConfig, config: Mapping[str, Any]) -> tuple[int, int]:
        self.width = c.hidden_size
        return c.hidden_size, 2 * c.hidden_size

    def first_layer(self, w: Weights, c: DecoderConfig, config: Mapping[str, Any]) -> nn.Module:
        return EagleLayer(w, c, 0, self.rope)

    def make_head(self, w: Weights, c: DecoderConfig, config: Mapping[str, Any], names: Collection[str]) -> None:
        self.matrix = Head(w / "lm_head", c.vocab_size, c.hidden_size)

    def merge(self, states: Tensor) -> Tensor:
        return states.to(self.dtype)

    def begin(self, ids: Tensor, states: Tensor, positions: Tensor) -> Tensor:
        both = torch.cat((self.embed_tokens.look_up(ids), states), dim=-1)
        return products.linear(both, self.fc, self.fc_bias)

    def head(self, states: Tensor, step: Step) -> Tensor:  # type: ignore[override]
        return self.matrix(states, step)  # type: ignore[no-any-return]


class Eagle3(Eagle):
    @staticmethod
    def taps(config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
        """Those that config.json names, else the usual ones: near the beginning, the middle and the end."""
        asked = _asked(config)
        found = read_layers(asked, layers, (2, layers // 2, layers - 3))
        if found is None:
            raise CheckpointError(
                f"the heads' config.json: eagle_aux_hidden_state_layer_ids must be ascending numbers from 0 to "
                f"{layers}, the layers of the model that answers; it is {asked}"
            )
        return found

    def fc_shape(self, c: DecoderConfig, config: Mapping[str, Any]) -> tuple[int, int]:
        self.width = 2 * c.hidden_size
        read = len(_asked(config) or range(_USUAL))
        return c.hidden_size, read * int(config.get("target_hidden_size") or c.hidden_size)

    def first_layer(self, w: Weights, c: DecoderConfig, config: Mapping[str, Any]) -> nn.Module:
        return Eagle3Layer(w, c, self.rope, normed=bool(config.get("norm_before_residual", False)))

    def make_head(self, w: Weights, c: DecoderConfig, config: Mapping[str, Any], names: Collection[str]) -> None:
        self.known = int(config.get("draft_vocab_size") or c.vocab_size)
        self.matrix = Head(w / "lm_head", self.known, c.hidden_size)
        self.last_norm = RMSNorm(w / "norm", c.hidden_size, c.norm_eps)
        self.distances: nn.Parameter | None = None
        if self.known != c.vocab_size or "d2t" in names:
            every = (slice(0, self.known),)
            piece = Piece("d2t", (self.known,), every, every)
            self.distances = w.declare((self.known,), (piece,), dtype=torch.int64)

    def check(self, *, invented: bool) -> None:
        if self.distances is None:
            return
        if invented:
            self.distances.zero_()
        ids = self.distances + torch.arange(self.known, device=self.distances.device)
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size or len(ids.unique()) < len(ids):
            raise CheckpointError(f"the heads' d2t must lead to different tokens from 0 to {self.vocab_size - 1}")

    def merge(self, states: Tensor) -> Tensor:
        return products.linear(states.to(self.dtype), self.fc, self.fc_bias)

    def begin(self, ids: Tensor, states: Tensor, positions: Tensor) -> Tensor:
        return torch.cat((self.embed_tokens.look_up(ids), states), dim=-1)

    def head(self, states: Tensor, step: Step) -> Tensor:  # type: ignore[override]
        logits: Tensor = self.matrix(self.last_norm(states), step)
        if self.distances is None:
            return logits
        ids = self.distances + torch.arange(self.known, device=logits.device)
        least = torch.finfo(logits.dtype).min  # of tokens that the heads do not know; infinite logits count as broken
        return logits.new_full((len(logits), self.vocab_size), least).index_copy_(1, ids, logits)


def _asked(config: Mapping[str, Any]) -> Any:
    """The layers whose states config.json wants, None where it leaves that open. Raises ``CheckpointError``."""
    own = config.get("eagle_config") or config
    if own.get("use_aux_hidden_state", True) is not True:
        raise CheckpointError(
            "the heads' config.json: use_aux_hidden_state is false, and heads of EAGLE 3 are served that read the "
            "states of layers in between"
        )
    return own.get("eagle_aux_hidden_state_layer_ids")
