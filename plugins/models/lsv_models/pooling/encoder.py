"""What encoders of text are made of: attention over whole inputs without a cache, embeddings, and the model around.

An encoder is small beside a language model, so it is replicated on every rank. Its layers declare tensors under names
of their own (``layers.0.attn.q``), which a family's ``names`` map its checkpoints' to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.nn.embed import Embed
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedActivation, find_activation
from lsv_runtime.nn.model import Model
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.naming import substitute
from lsv_runtime.weights.place import Weights

_BESIDE = (
    "classifier_dropout", "classifier_pooling", "decoder_bias", "head_dim", "initializer_cutoff_factor",
    "is_matryoshka", "matryoshka_dimensions", "sbert_ce_default_activation_function", "sentence_transformers",
    "tie_weights_", "tie_word_embeddings",
)  # fmt: skip
"""Keys of heads that are not run, and of what is read elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """The sizes of an encoder."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    activation: str
    norm_eps: float
    types: int = 0
    """Rows of the embedding that tells a second text from the first; 0 for none."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.heads:
            raise CheckpointError(f"config.json: {self.hidden_size} features are not a multiple of {self.heads} heads")

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @classmethod
    def read(cls, keys: Keys, **given: Any) -> EncoderConfig:
        """From the keys that BERT made common; ``given`` is what a family calls otherwise."""
        return cls(
            vocab_size=keys.count("vocab_size"),
            hidden_size=keys.count("hidden_size"),
            intermediate_size=keys.count("intermediate_size"),
            layers=keys.layers("num_hidden_layers"),
            heads=keys.count("num_attention_heads"),
            **given,
        )


def finish(keys: Keys, architecture: str) -> None:
    """Refuse unread keys, as ``Keys.finish`` does, but for those that do not matter to an encoder."""
    for name in _BESIDE:
        keys.maybe(name, object)
    keys.finish(architecture)


class Attention(nn.Module):
    """x [T, hidden] -> [T, hidden]; every token attends to all of its row, or to ``window`` on both sides of itself.

    ``names`` are those of q, k and v, or one for all three in one tensor.
    """

    def __init__(
        self,
        w: Weights,
        c: EncoderConfig,
        index: int,
        *,
        names: Sequence[str] = ("q", "k", "v"),
        bias: bool = True,
        rope: Rope | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        size = c.hidden_size
        self.qkv = Column.even(w, names, size, 3 * size // len(names), bias=bias)
        self.out = Column.even(w, ("out",), size, size, bias=bias)
        self.rope = rope
        self.layer = AttentionLayer(index, c.heads, c.heads, c.head_dim, c.head_dim**-0.5, causal=False, window=window)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        layer = self.layer
        qkv = self.qkv(x).view(-1, 3 * layer.heads, layer.head_dim)
        qk, v = qkv[:, : 2 * layer.heads], qkv[:, 2 * layer.heads :]
        if self.rope is not None:
            qk = self.rope(qk, step.positions[0])
        q, k = qk[:, : layer.heads], qk[:, layer.heads :]
        attended = step.backend.attend(q, k, v, layer, step.cache, step.attention[layer.group])
        return self.out(attended.flatten(1))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """``down(activation(up(x)))``: x [T, hidden] -> [T, hidden]."""

    def __init__(self, w: Weights, c: EncoderConfig) -> None:
        super().__init__()
        self.up = Column.even(w, ("up",), c.hidden_size, c.intermediate_size, bias=True)
        self.down = Column.even(w, ("down",), c.intermediate_size, c.hidden_size, bias=True)
        self.activate = find_activation(c.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activate(self.up(x)))  # type: ignore[no-any-return]


class GatedMLP(nn.Module):
    """``down(activation(gate) * up)``; ``names`` are those of gate and up, or one for both in one tensor.

    ``up_first`` says that up comes before gate in that.
    """

    def __init__(
        self,
        w: Weights,
        c: EncoderConfig,
        *,
        names: Sequence[str] = ("gate", "up"),
        bias: tuple[bool, bool] = (False, False),
        up_first: bool = False,
    ) -> None:
        super().__init__()
        inner = c.intermediate_size
        self.gate_up = Column.even(w, names, c.hidden_size, 2 * inner // len(names), bias=bias[0])
        self.down = Column.even(w, ("down",), inner, c.hidden_size, bias=bias[1])
        self.act, self.up_first = GatedActivation(c.activation, w.dtype), up_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.gate_up(x)
        if not self.up_first:
            return self.down(self.act(both))  # type: ignore[no-any-return]
        up, gate = both.chunk(2, dim=-1)
        return self.down(self.act.activate(gate) * up)  # type: ignore[no-any-return]


class PostNormLayer(nn.Module):
    """A block of the first transformers: ``norm(x + attn(x))``, then ``norm(x + mlp(x))``."""

    def __init__(self, w: Weights, c: EncoderConfig, attn: Attention, mlp: nn.Module) -> None:
        super().__init__()
        self.attn, self.mlp = attn, mlp
        self.attn_norm = LayerNorm(w / "attn_norm", c.hidden_size, c.norm_eps)
        self.mlp_norm = LayerNorm(w / "mlp_norm", c.hidden_size, c.norm_eps)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = self.attn_norm(x + self.attn(x, step))
        return self.mlp_norm(x + self.mlp(x))  # type: ignore[no-any-return]


class Embeddings(nn.Module):
    """Words, places and which of two texts, added up and normed: ids int64 [T] -> [T, hidden].

    ``places`` are the rows of the embedding of positions, None where tokens are rotated instead; the first token is at
    ``first``. Raises ``CheckpointError`` where ``max_len`` tokens have no places.
    """

    def __init__(
        self, w: Weights, c: EncoderConfig, max_len: int, *, places: int | None = None, first: int = 0
    ) -> None:
        super().__init__()
        size = c.hidden_size
        self.word = Embed(w / "word", c.vocab_size, size)
        self.places = None if places is None else (w / "position").take("weight", (places, size))
        self.types = (w / "type").take("weight", (c.types, size)) if c.types else None
        self.norm = LayerNorm(w / "norm", size, c.norm_eps)
        self.first = first
        if places is not None and max_len > places - first:
            raise CheckpointError(
                f"the model has places for {places - first} tokens, and max_model_len is {max_len}: lower it",
                param="max_model_len",
            )

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        x = self.word(ids, step)
        if self.types is not None:
            single = step.types is None or len(self.types) == 1
            x = x + (self.types[0] if single else self.types[step.types])
        if self.places is not None:
            x = x + self.places[step.positions[0] + self.first]
        return self.norm(x)  # type: ignore[no-any-return]


class TextEncoder(Model):
    """An encoder: ``embed``, ``layers`` and, where a family norms last, ``norm``. It has no logits of tokens."""

    pairs = True
    names: ClassVar[Sequence[tuple[str, str]]] = ()
    """Regular expressions of parts of checkpoints' names, and what they are here; all are applied in order."""
    ignores: tuple[str, ...] = (
        r"(^|\.)position_ids$", r"(^|\.)token_type_ids$", r"(^|\.)rotary_emb\.\w+$", r"^pooler\.",
        r"^(cls|lm_head|vocab_\w+|decoder|predictions)\.",
    )  # fmt: skip

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.vocab_size = c.vocab_size
        self.norm = nn.Identity()
        self.head = self._no_logits

    def rename(self, name: str) -> str:
        return substitute(name, self.names)

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return tuple(attention.layer for attention in self._attentions())

    def place_layers(self, layers: Sequence[AttentionLayer]) -> None:
        for attention, layer in zip(self._attentions(), layers, strict=True):
            attention.layer = dataclasses.replace(layer, causal=False)

    def _attentions(self) -> list[Attention]:
        found = [module for module in self.modules() if isinstance(module, Attention)]
        return sorted(found, key=lambda attention: attention.layer.index)

    def _no_logits(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """For warming up: no token is likelier than another."""
        return x.new_zeros((len(x), self.vocab_size))


def head_of(config: Mapping[str, Any]) -> str:
    """Which head a checkpoint has, of those that encoders have: ``"sequence"``, ``"token"`` or none, ``""``."""
    name = str((config.get("architectures") or [""])[0])
    kinds = {"ForSequenceClassification": "sequence", "ForTokenClassification": "token"}
    return next((kind for ending, kind in kinds.items() if name.endswith(ending)), "")
