"""What sets families of GPT-like decoders apart besides their numbers: how a layer is put together, and names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import nn

from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.weights.naming import Prefixes
from lsv_runtime.weights.place import Weights

if TYPE_CHECKING:
    from lsv_runtime.nn.gpt.config import GptConfig

MakeNorm = Callable[[Weights, int, float], nn.Module]
"""A norm at a place, of a size and an epsilon."""
MakeHeadNorm = Callable[[Weights, str, "GptConfig", int, tuple[int, int]], nn.Module]
"""The norm of queries (``"q"``) or keys (``"k"``), below attention's place: of so many heads in all, and of those the
ones from first to last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projections:
    """Where a checkpoint has the projections of attention, below its place."""

    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """Those of q, k and v, or one for all three fused."""
    blocks: int | None = 1
    """Of a fused tensor: how many equal blocks it has, each with its share of q, k and v; None is one a KV head."""
    order: str = "qkv"
    """Of a fused tensor: what comes first in a block."""
    out: str = "o_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A family's layers and names. Defaults are those that most families have."""

    place: str = "model"
    """Where everything but the head is."""
    embed: str = "embed_tokens"
    positions: str | None = None
    """Learned positions, if there are any."""
    first_position: int = 0
    """The row of position 0."""
    embed_norm: str | None = None
    layers: str = "layers"
    norm: str | None = "norm"
    head: str = "lm_head"
    head_bias: bool = False

    residual: Literal["sequential", "parallel", "normed"] = "sequential"
    """Whether attention comes before the MLP, beside it, or before it and each is followed by its norm."""
    make_norm: MakeNorm = LayerNorm
    before_attn: str = "input_layernorm"
    before_mlp: str | None = "post_attention_layernorm"
    """None where the MLP reads what attention reads."""
    attn: str = "self_attn"
    projections: Projections = Projections()
    make_head_norm: MakeHeadNorm | None = None
    qkv_bias: bool = True
    out_bias: bool = True
    mlp: str = "mlp"
    """Empty where the MLP's layers are at the layer's own place."""
    mlp_names: tuple[str, ...] = ("fc1", "fc2")
    """First and second of a plain MLP; gate, up and down of a gated one."""
    mlp_bias: bool = True
    transposed: bool = False
    """Whether linear weights are stored as [inputs, outputs]."""

    @property
    def prefixes(self) -> Prefixes:
        """How checkpoints of a bare model name what is here below ``place``."""
        names = (self.embed, self.positions, self.embed_norm, self.layers, self.norm)
        return tuple((name, f"{self.place}.{name}") for name in names if name is not None)
