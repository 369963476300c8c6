"""DBRX: experts stacked row by row, q, k and v fused and clipped, layer norms without biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_base.errors import CheckpointError
from lsv_models.llama import LlamaLayer
from lsv_models.sparse.attention import ClippedAttention
from lsv_models.sparse.decoder import PlainLayerNorm, SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import Rope
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights
from lsv_runtime.weights.stacks import Stack

_NAMES = (
    ("transformer.blocks.", "model.layers."),
    ("transformer.wte.", "model.embed_tokens."),
    ("transformer.norm_f.", "model.norm."),
    (".norm_attn_norm.norm_1.", ".input_layernorm."),
    (".norm_attn_norm.norm_2.", ".post_attention_layernorm."),
    (".norm_attn_norm.attn.out_proj.", ".self_attn.o_proj."),
    (".norm_attn_norm.attn.", ".self_attn."),
    (".ffn.router.layer.", ".ffn.gate."),
)
"""Parts of names: theirs and ours."""
_OF_THE_WHOLE = ("hidden_size", "tie_word_embeddings")


class DbrxLayer(LlamaLayer):
    norm = PlainLayerNorm  # type: ignore[assignment]  # made and called alike
    attention = ClippedAttention


class Dbrx(SparseDecoder):
    mlp = "ffn"
    layer = DbrxLayer

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__(w, _flatten(config), max_len)

    def rename(self, name: str) -> str:
        for theirs, own in _NAMES:
            name = name.replace(theirs, own)
        return name

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        power, count = keys.maybe("moe_normalize_expert_weights", float), keys.count("moe_num_experts", 4)
        if power not in (None, 1.0):
            raise CheckpointError(f"config.json: moe_normalize_expert_weights must be 1 or null, got {power}")
        rows = {"experts": count}
        self.stacks = (
            Stack(
                r"(.*\.self_attn)\.Wqkv\.weight", ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
                experts=0, shares=(c.heads, c.kv_heads, c.kv_heads),
            ),
            Stack(r"(.*\.experts)\.mlp\.w1", ("gate_proj.weight",), **rows),
            Stack(r"(.*\.experts)\.mlp\.v1", ("up_proj.weight",), **rows),
            Stack(r"(.*\.experts)\.mlp\.w2", ("down_proj.weight",), transposed=True, **rows),
        )  # fmt: skip
        return Experts(
            layers=range(c.layers),
            count=count,
            top=keys.count("moe_top_k", 1),
            size=c.intermediate_size,
            normalise=power is not None,
        )

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        self.limit = keys.maybe("clip_qkv", float)

    def make_layer(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, mlp: Bindable) -> DecoderLayer:
        made = DbrxLayer(w, c, layer, rope, mlp)
        if self.limit is not None:
            made.attn.clip(self.limit)  # type: ignore[attr-defined]
        return made


def _flatten(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of attention and experts beside the others, under the names that most decoders have for them."""
    inner = {key: config.get(key) or {} for key in ("attn_config", "ffn_config")}
    for key, value in inner.items():
        if not isinstance(value, Mapping):
            raise CheckpointError(f"config.json: {key} must be an object, got {value!r:.100}")
    known = {key: value for key, value in config.items() if key not in inner}
    own = {"num_key_value_heads": 1, "ffn_hidden_size": 3584, "ffn_act_fn": None, "moe_normalize_expert_weights": 1.0}
    for part in inner.values():
        # the file's own keys stand for what transformers writes into every part, and its hidden size for the parts'
        own |= {key: value for key, value in part.items() if _is_own(key) or key not in (*known, *_OF_THE_WHOLE)}
    activation = own.pop("ffn_act_fn") or {"name": "silu"}
    names = {
        "d_model": "hidden_size", "n_heads": "num_attention_heads", "n_layers": "num_hidden_layers",
        "max_seq_len": "max_position_embeddings", "kv_n_heads": "num_key_value_heads",
        "ffn_hidden_size": "intermediate_size",
    }  # fmt: skip
    flat = {names.get(key, key): value for key, value in {**known, **own}.items()}
    return {**flat, "hidden_act": activation.get("name", "silu"), "rms_norm_eps": 1e-5}


def _is_own(key: str) -> bool:
    """Whether a part says it of itself, whatever the file says."""
    return key.startswith(("clip_qkv", "kv_n_heads", "rope_theta", "ffn_", "moe_"))
