"""Phi-3-small (Microsoft 2024): layer norms, a bounded gate, muP's multipliers, and every other layer block-sparse."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.llama import LlamaLayer
from lsv_models.rms.phi3 import with_magnitude
from lsv_runtime.attention.pattern import BlockPattern
from lsv_runtime.nn.attention import Attention, Heads
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column, Row
from lsv_runtime.nn.mlp import GatedActivation, GatedMLP
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights

log = logging.getLogger(__name__)

_UNUSED = (*range(100258, 100261), 100256, 100264, 100265, *range(100267, 100352))
"""Ids of its tokenizer that stand for nothing, which config.json may leave to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi3SmallConfig(DecoderConfig):
    """The numbers of a Phi-3-small."""

    limit: float | None
    """Bounds the gate from above and what it gates on both sides."""
    pattern: BlockPattern | None
    """None for full attention."""


class BlockSparseAttention(Attention):
    """Attention to the blocks of a pattern: x [T, hidden] -> [T, hidden]."""

    variation: ClassVar[str] = "block_sparse"

    def __init__(self, w: Weights, c: Phi3SmallConfig, layer: int, rope: Rope | None, **given: Any) -> None:
        super().__init__(w, c, layer, rope, **given)
        assert c.pattern is not None
        first, _ = Heads(w, c).queries
        self.layer = replace(self.layer, pattern=replace(c.pattern, first_head=first))


class Gegelu(GatedActivation):
    """x [..., 2 * size], of which gates and what they gate take turns -> [..., size]."""

    def __init__(self, limit: float | None, dtype: torch.dtype) -> None:
        super().__init__("quick_gelu", dtype)
        self.name, self.limit = "gegelu", limit

    def reference(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x[..., ::2], x[..., 1::2]
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return self.activate(gate) * (up + 1)


class GegeluMLP(GatedMLP):
    """``down(gegelu(up(x)))``: x [T, hidden] -> [T, hidden]."""

    op: ClassVar[str] = "gegelu_mlp"

    def __init__(self, w: Weights, c: Phi3SmallConfig) -> None:
        Bindable.__init__(self)
        inner = c.intermediate_size
        share = w.shard.split(inner, "intermediate features")
        self.gate_up = Column.even(w, ("up_proj",), c.hidden_size, 2 * inner, bias=True)
        self.act = Gegelu(c.limit, w.dtype)
        self.down = Row(w, "down_proj", inner, c.hidden_size, reads=share, bias=True)


class Phi3SmallLayer(LlamaLayer):
    norm = LayerNorm  # type: ignore[assignment]  # made and called alike
    fused = partial(Heads.grouped, name="query_key_value")
    qkv_bias = out_bias = True

    def __init__(self, w: Weights, c: Phi3SmallConfig, layer: int, rope: Rope | None) -> None:
        super().__init__(w, c, layer, rope, GegeluMLP(w / "mlp", c))

    def make_attention(
        self, w: Weights, c: DecoderConfig, layer: int, rope: Rope | None, kind: type[Attention], **more: Any
    ) -> Any:
        assert isinstance(c, Phi3SmallConfig)
        return super().make_attention(w, c, layer, rope, BlockSparseAttention if c.pattern else kind, **more)


class MaskedHead(nn.Module):
    """A head that never gives certain ids: [R, hidden] -> logits [R, vocab_size]."""

    def __init__(self, head: nn.Module, ids: torch.Tensor) -> None:
        super().__init__()
        self.head, self.ids = head, ids

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        logits: torch.Tensor = self.head(x, step)
        return logits.index_fill(-1, self.ids, torch.finfo(logits.dtype).min)


class Phi3Small(DenseDecoder):
    layer = Phi3SmallLayer
    keys = {"rms_norm_eps": "layer_norm_epsilon", "rope_theta": "rope_embedding_base",
            "intermediate_size": "ff_intermediate_size"}  # fmt: skip
    defaults: ClassVar[Mapping[str, Any]] = {"tied": True, "activation": "gegelu"}
    sizes: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": 8, "ff_intermediate_size": 14336, "max_position_embeddings": 8192,
        "rope_embedding_base": 1e6, "layer_norm_epsilon": 1e-5, "gegelu_limit": 20.0,
        "dense_attention_every_n_layers": 2, "mup_width_multiplier": 8.0, "mup_embedding_multiplier": 10.0,
    }  # fmt: skip
    """What config.json may leave out."""
    prefixes = (
        ("model.layers.*.self_attn.dense", "model.layers.*.self_attn.o_proj"),
        ("model.final_layernorm", "model.norm"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        self.max_len = max_len
        super().__init__(w, with_magnitude({**self.sizes, **config}, max_len), max_len)
        self.head: Any = MaskedHead(self.head, torch.tensor(self.unused, device=w.device))

    def read(self, keys: Keys) -> Phi3SmallConfig:
        c = super().read(keys)
        if c.activation != "gegelu":
            raise CheckpointError(f"config.json: hidden_act must be gegelu, got {c.activation!r:.100}")
        keys.agree("ff_dim_multiplier", None)
        keys.agree("rope_position_scale", 1.0)
        keys.skip("reorder_and_upcast_attn", "blocksparse_triton_kernel_block_size")
        self.unused = _read_unused(keys, c.vocab_size)
        self.dense_every = keys.maybe("dense_attention_every_n_layers", int) or 0
        own = {name: getattr(c, name) for name in DecoderConfig.__dataclass_fields__}
        own |= {
            "attention_scale": _read_scale(keys, c.head_dim),
            "embedding_multiplier": max(0.0, keys.maybe("mup_embedding_multiplier", float) or 0.0) or 1.0,
            "logit_divisor": keys.maybe("mup_width_multiplier", float) or 1.0,
        }
        limit = keys.maybe("gegelu_limit", float)
        return Phi3SmallConfig(**own, limit=limit, pattern=self._read_pattern(keys, c.heads))

    def _read_pattern(self, keys: Keys, heads: int) -> BlockPattern | None:
        """None where the longest input is no longer than what every token sees."""
        stride = keys.count("blocksparse_vert_stride", 8)
        pattern = BlockPattern(
            size=keys.count("blocksparse_block_size", 64),
            local=keys.count("blocksparse_num_local_blocks", 16),
            stride=stride,
            shift=0 if keys.take("blocksparse_homo_head_pattern", bool, False) else max(1, stride // heads),
        )
        if self.max_len <= pattern.full:
            return None
        log.warning(
            "layers have block-sparse attention, which is slower and not in every attention backend: with "
            "--max-model-len %d all attention is full",
            pattern.full,
        )
        return pattern

    def of_layer(self, c: DecoderConfig, layer: int) -> DecoderConfig:
        assert isinstance(c, Phi3SmallConfig)
        dense = self.dense_every and (layer + 1) % self.dense_every == 0
        return replace(c, pattern=None) if dense else c


def _read_scale(keys: Keys, head_dim: int) -> float | None:
    multiplier = keys.take("mup_attn_multiplier", float, 1.0)
    return multiplier / head_dim if keys.take("mup_use_scaling", bool, True) else None


def _read_unused(keys: Keys, vocab_size: int) -> list[int]:
    """The ids that no answer may have."""
    ids = keys.take("dummy_token_indices", list, list(_UNUSED))
    if not all(type(one) is int and 0 <= one < vocab_size for one in ids):
        raise CheckpointError(f"config.json: dummy_token_indices must be ids below vocab_size={vocab_size}")
    return ids
