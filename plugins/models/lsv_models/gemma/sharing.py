"""What Gemma 3n and 4 have in common: layers that read what earlier ones keep, and an input for every layer.

Sources: the model cards of Gemma 3n and Gemma 4, and transformers' ``Gemma3nTextModel`` and ``Gemma4TextModel``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.attention import Attended, Attention, ReadingAttention, Sizes
from lsv_runtime.nn.embed import Embed, ScaledEmbed
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import find_activation
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.naming import Prefixes
from lsv_runtime.weights.place import Weights

SHARED_NAMES = r"^model\.layers\.({})\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\."
"""What checkpoints may hold of layers that have no keys and values, by the numbers of these layers."""

_BARE = ("layers", "embed_tokens", "norm", "embed_tokens_per_layer", "per_layer_model_projection",
         "per_layer_projection_norm")  # fmt: skip


def bare_names(*more: str) -> Prefixes:
    """What checkpoints without a head call the model's tensors; ``more`` are parts that a family has beside others."""
    return tuple((name, f"model.{name}") for name in (*_BARE, *more))


def find_sources(windows: Sequence[int | None], shared: int) -> tuple[int | None, ...]:
    """For each layer the one whose keys and values it attends to, None where it has its own: the last ``shared`` layers
    read from the last one before them that has a window, or has none, as they do.

    Raises ``CheckpointError`` where there is no such layer.
    """
    first = len(windows) - shared
    own = {window is None: layer for layer, window in enumerate(windows[: max(0, first)])}
    readers = {window is None for window in windows[max(0, first) :]}
    if shared < 0 or not readers <= set(own):
        raise CheckpointError(
            f"config.json: num_kv_shared_layers={shared} leaves no layer of each kind that keeps keys and values; "
            f"there are {len(windows)} layers"
        )
    return tuple(None if layer < first else own[window is None] for layer, window in enumerate(windows))


def unused_names(sources: Sequence[int | None]) -> tuple[str, ...]:
    """Regular expressions of tensors that checkpoints may hold and layers that read from ``sources`` don't need."""
    numbers = "|".join(str(layer) for layer, source in enumerate(sources) if source is not None)
    return (SHARED_NAMES.format(numbers),) if numbers else ()


class ValueNormAttention(Attention):
    """Heads of q, k and v are all normalised, those of v without a weight. Without a projection of v, v is made of what
    k is made of.
    """

    variation: ClassVar[str] = "value_norm"

    def __init__(self, w: Weights, c: Sizes, layer: int, rope: Rope | None, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **given)
        self.eps = c.norm_eps

    def make_heads(self, x: torch.Tensor, step: Step) -> Attended:
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        qk = self.turn(heads[:, : self.heads + self.kv_heads], step)
        v = functional.rms_norm(heads[:, -self.kv_heads :].float(), (self.head_dim,), eps=self.eps)
        return qk[:, : self.heads], qk[:, self.heads :], v.type_as(qk)


def attention_of(source: int | None) -> tuple[type[Attention], dict[str, Any]]:
    """The class of a layer's attention, and what it is given beside what all are."""
    return (ValueNormAttention, {}) if source is None else (ReadingAttention, {"reads": source})


class LayerInputs(nn.Module):
    """Embeddings, and behind them an input for every layer: ids int64 [T] -> [T, hidden + layers * size].

    An input is the sum of what a table of its own has for the token and of a normed projection of the embedding. Every
    layer takes the first of those that are left. Ids that the table does not have take row 0.
    """

    def __init__(
        self, w: Weights, embed: Embed | ScaledEmbed, sizes: tuple[int, int], rows: int, size: int, eps: float
    ) -> None:
        """``sizes`` = (hidden, layers); the table at ``w`` has ``rows`` rows."""
        super().__init__()
        hidden, layers = sizes
        self.embed, self.rows, self.size, self.hidden = embed, rows, size, hidden
        self.width = hidden + layers * size
        table = Embed(w / "embed_tokens_per_layer", rows, layers * size)
        table.quantisable = False  # a row has inputs of all layers, too many for one scale
        self.table = ScaledEmbed(table, size**0.5)
        self.projection = Column.even(w.replicated(), ["per_layer_model_projection"], hidden, layers * size)
        self.norm = RMSNorm(w / "per_layer_projection_norm", size, eps)

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return self.extend(self.embed(ids, step), ids, step)

    def extend(self, x: torch.Tensor, ids: torch.Tensor, step: Step) -> torch.Tensor:
        """Embeddings [T, hidden], of which some may be others than those of their ``ids``, with the inputs."""
        projected = self.projection(x) * self.hidden**-0.5
        projected = self.norm(projected.unflatten(-1, (-1, self.size))).flatten(1)
        own = self.table(ids.masked_fill(ids >= self.rows, 0), step)
        return torch.cat((x, (projected + own) * 0.5**0.5), dim=1)


class LayerInput(nn.Module):
    """What a layer makes of its input: x [T, hidden] and the input [T, size] -> [T, hidden]."""

    def __init__(self, w: Weights, hidden_size: int, size: int, activation: str, eps: float) -> None:
        super().__init__()
        alone = w.replicated()
        self.gate = Column.even(alone, ["per_layer_input_gate"], hidden_size, size)
        self.projection = Column.even(alone, ["per_layer_projection"], size, hidden_size)
        self.norm = RMSNorm(w / "post_per_layer_input_norm", hidden_size, eps)
        self.activate = find_activation(activation)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return self.norm(self.projection(self.activate(self.gate(x)) * given))  # type: ignore[no-any-return]
