"""BERTs whose tokens are rotated instead of having places, with gated MLPs: NomicBERT (Nussbaum et al. 2024) and GTE
(Zhang et al. 2024, whose checkpoints call themselves New).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.pooling.encoder import (
    Attention,
    Embeddings,
    EncoderConfig,
    GatedMLP,
    PostNormLayer,
    TextEncoder,
    finish,
    head_of,
)
from lsv_models.pooling.heads import Classifier, count_labels
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import Rope, RopeConfig, read_rope
from lsv_runtime.weights.place import Weights

_NOMIC = {
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers", "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta", "rotary_emb_fraction": "partial_rotary_factor",
    "activation_function": "hidden_act",
}  # fmt: skip
"""What NomicBERT's own code calls its keys, and what they are called elsewhere."""
_NOMIC_FIXED: Mapping[str, tuple[Any, ...]] = {
    "prenorm": (False,), "parallel_block": (False,), "use_rms_norm": (False,), "qkv_proj_bias": (False,),
    "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,), "causal": (False,), "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,), "rotary_scaling_factor": (None, 1, 1.0), "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,), "num_experts": (0, None), "moe_every_n_layers": (0, None),
}  # fmt: skip
"""What NomicBERT's code could do besides, and which values ask for nothing of it."""
_NEW_FIXED = {
    "pack_qkv": True, "position_embedding_type": "rope", "layer_norm_type": "layer_norm",
    "logn_attention_scale": False, "logn_attention_clip1": False,
}  # fmt: skip


_BESIDE = (
    "attn_pdrop", "fused_bias_fc", "fused_dropout_add_ln", "pad_vocab_size_multiple", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "unpad_inputs",
    "use_flash_attn", "use_memory_efficient_attention", "use_xentropy", "last_layer_subset", "reorder_and_upcast_attn",
    "moe_top_k", "moe_normalize_expert_weights", "moe_resid_pdrop", "moe_impl", "ffn_div", "expert_choice_router",
    "router_aux_loss_coef", "max_trained_positions", "num_shared_experts", "use_cache",
)  # fmt: skip
"""Of other programs' kernels, and of what these models could be besides and are not."""


class RopedBert(TextEncoder):
    """``activation`` and the ``biases`` of (attention, gate and up, down) are the family's."""

    biases: ClassVar[tuple[bool, bool, bool]]
    gates: ClassVar[tuple[str, ...]]
    """The tensors of gate and up."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        w, keys = w.replicated(), Keys(self.spell(config))
        c = EncoderConfig.read(
            keys,
            activation=keys.take("hidden_act", str, "gelu"),
            norm_eps=keys.take("layer_norm_eps", float, 1e-12),
            types=keys.take("type_vocab_size", int, 0),
        )
        rope = Rope(w, self.read_rope(keys, c.head_dim), max_len)
        for name in _BESIDE:
            keys.maybe(name, object)
        finish(keys, type(self).__name__)
        super().__init__(c)
        self.embed = Embeddings(w / "embeddings", c, max_len)
        of_attn, of_gate, of_down = self.biases
        layers = []
        for i in range(c.layers):
            at = w / "layers" / i
            attn = Attention(at / "attn", c, i, names=("qkv",), bias=of_attn, rope=rope)
            mlp = GatedMLP(at / "mlp", c, names=self.gates, bias=(of_gate, of_down), up_first=len(self.gates) == 1)
            layers.append(PostNormLayer(at, c, attn, mlp))
        self.layers = nn.ModuleList(layers)
        kind, sizes = head_of(config), (c.hidden_size, count_labels(config))
        if kind == "sequence":
            self.ignores = tuple(one for one in self.ignores if "pooler" not in one)
            self.scorer = Classifier(w, sizes, dense="pooler.dense")
        elif kind:
            self.scorer = Classifier(w, sizes)

    def spell(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """config.json under the keys that are read. Raises ``CheckpointError`` for what is not computed here."""
        return config

    def read_rope(self, keys: Keys, head_dim: int) -> RopeConfig:
        return read_rope(keys, head_dim, 10000.0)


class NomicBert(RopedBert):
    biases = (False, False, False)
    gates = ("gate", "up")
    names = (
        (r"^(nomic_)?bert\.", ""),
        (r"^embeddings\.word_embeddings", "embeddings.word"),
        (r"^embeddings\.token_type_embeddings", "embeddings.type"),
        (r"^emb_ln", "embeddings.norm"),
        (r"^encoder\.layers\.", "layers."),
        (r"attn\.Wqkv", "attn.qkv"),
        (r"attn\.out_proj", "attn.out"),
        (r"mlp\.fc11", "mlp.up"),
        (r"mlp\.fc12", "mlp.gate"),
        (r"mlp\.fc2", "mlp.down"),
        (r"norm1", "attn_norm"),
        (r"norm2", "mlp_norm"),
    )

    def spell(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        for key, harmless in _NOMIC_FIXED.items():
            if key in config and config[key] not in harmless:
                raise CheckpointError(f"config.json: {key} is {config[key]!r:.100}, which NomicBERT is not run with")
        renamed = {_NOMIC.get(key, key): value for key, value in config.items() if key not in _NOMIC_FIXED}
        activation = renamed.get("hidden_act", "silu")
        if activation == "gelu":  # of NomicBERT's own code: a plain MLP, as later mixtures of experts have
            raise CheckpointError("config.json: NomicBERT is run with a gated MLP alone, and this one has gelu")
        return {**renamed, "hidden_act": "silu" if activation == "swiglu" else activation}


class Gte(RopedBert):
    biases = (True, False, True)
    gates = ("up_gate",)
    names = (
        (r"^(new|gte)\.", ""),
        (r"^embeddings\.word_embeddings", "embeddings.word"),
        (r"^embeddings\.token_type_embeddings", "embeddings.type"),
        (r"^embeddings\.LayerNorm", "embeddings.norm"),
        (r"^encoder\.layer\.", "layers."),
        (r"attention\.qkv_proj", "attn.qkv"),
        (r"attention\.o_proj", "attn.out"),
        (r"mlp\.up_gate_proj", "mlp.up_gate"),
        (r"mlp\.down_proj", "mlp.down"),
        (r"attn_ln", "attn_norm"),
        (r"mlp_ln", "mlp_norm"),
    )

    def spell(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        for key, own in _NEW_FIXED.items():
            if config.get(key, own) != own:
                raise CheckpointError(f"config.json: {key} is {config[key]!r:.100}, and GTE is run with {own!r}")
        return {"type_vocab_size": 1, **{key: value for key, value in config.items() if key not in _NEW_FIXED}}

    def read_rope(self, keys: Keys, head_dim: int) -> RopeConfig:
        """The ``ntk`` rule of GTE's own code: theta times the factor, and all turns slower by its power 2 / dim."""
        scaling = keys.json.get("rope_scaling")
        if not isinstance(scaling, Mapping) or scaling.get("type", scaling.get("rope_type")) != "ntk":
            return read_rope(keys, head_dim, 10000.0)
        factor = scaling.get("factor")
        if not isinstance(factor, int | float) or factor < 1 or scaling.get("mixed_b") is not None:
            raise CheckpointError("config.json: rope_scaling: ntk needs a factor of at least 1, and no mixed_b")
        for key in ("rope_scaling", "rope_theta", "max_position_embeddings"):
            keys.maybe(key, object)
        rope = read_rope(Keys({**keys.json, "rope_scaling": None}), head_dim, 10000.0)
        slower = {"factor": factor ** (2 / head_dim)}
        return dataclasses.replace(rope, kind="linear", theta=rope.theta * factor, parameters=slower)
