"""Dense families with Llama's block or a variation of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_base.errors import CheckpointError
from lsv_quant.gguf.architecture import BESIDE_TOWERS, BIASES, LOCAL_EXPERTS, WINDOW, Architecture, Config, Key

_LLAMA_BIASES = {**BIASES, "mlp_bias": "ffn_up.bias"}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_POST = {name: _SANDWICH[name] for name in ("post_attention_norm", "post_ffw_norm")}
_SOFT_CAPS: Mapping[str, Key] = {
    "attn_logit_softcapping": ("attn_logit_softcapping", float),
    "final_logit_softcapping": ("final_logit_softcapping", float),
}
_MULTIPLIERS: Mapping[str, Key] = {
    "attention.scale": ("attention_multiplier", float), "embedding_scale": ("embedding_multiplier", float),
    "residual_scale": ("residual_multiplier", float), "logit_scale": ("logits_scaling", float),
}  # fmt: skip


def _pattern(value: Any, config: Config) -> Mapping[str, Any]:
    return {"layer_types": ["sliding_attention" if local else "full_attention" for local in value]}


def _query_scale(largest: int) -> Any:
    """The ``largest`` model of the family, by its layers, divides by the root of another size than that of a head."""

    def rule(value: Any, config: Config) -> Mapping[str, Any]:
        other = config["hidden_size"] // config["num_attention_heads"]
        return {"query_pre_attn_scalar": other if value == largest else config["head_dim"]}

    return rule


def _depth(value: Any, config: Config) -> Mapping[str, Any]:
    return {"scale_depth": value * config["num_hidden_layers"] ** 0.5}


def _base(value: Any, config: Config) -> Mapping[str, Any]:
    if not value:
        raise CheckpointError("minicpm.logit_scale must not be 0", param="model")
    return {"dim_model_base": config["hidden_size"] / value}


_PATTERN: Mapping[str, Key] = {**WINDOW, "attention.sliding_window_pattern": (_pattern, list)}
_GEMMA = Architecture(name="GemmaForCausalLM", model_type="gemma", offset_norms=True)
_GLM = Architecture(
    name="GlmForCausalLM", model_type="glm", partial=True, parts={"ffn_up": "mlp.gate_up_proj"},
    there={"attention_bias": "attn_q.bias|attn_qkv.bias"},
)  # fmt: skip
_OLMO2 = Architecture(name="Olmo2ForCausalLM", model_type="olmo2", parts=_POST)

RMS: Mapping[str, tuple[Architecture, ...]] = {
    "llama": (
        Architecture(
            name="MixtralForCausalLM", model_type="mixtral", interleaved=True, when="expert_count",
            parts={"ffn_gate_inp": "block_sparse_moe.gate"}, experts=("block_sparse_moe.experts", "w1", "w3", "w2"),
            keys={key: LOCAL_EXPERTS[key] for key in ("expert_count", "expert_used_count")},
        ),
        Architecture(name="LlamaForCausalLM", model_type="llama", interleaved=True, there=_LLAMA_BIASES),
    ),
    "qwen": (
        Architecture(
            name="QWenLMHeadModel", model_type="qwen", partial=True, parts={"attn_qkv": "self_attn.c_attn"}, there={},
            without=frozenset(("num_key_value_heads",)),
        ),
    ),
    "qwen2": (Architecture(name="Qwen2ForCausalLM", model_type="qwen2", there={}),),
    "qwen2vl": (Architecture(name="Qwen2ForCausalLM", model_type="qwen2", there={}, keys=BESIDE_TOWERS),),
    "qwen3": (Architecture(name="Qwen3ForCausalLM", model_type="qwen3"),),
    "qwen3vl": (Architecture(name="Qwen3ForCausalLM", model_type="qwen3", keys=BESIDE_TOWERS),),
    "gemma": (_GEMMA,),
    "gemma2": (
        Architecture(
            name="Gemma2ForCausalLM", model_type="gemma2", offset_norms=True, parts=_SANDWICH,
            keys={**WINDOW, **_SOFT_CAPS, "block_count": (_query_scale(46), int)},
        ),
    ),
    "gemma3": (
        Architecture(
            name="Gemma3ForCausalLM", model_type="gemma3_text", offset_norms=True, parts=_SANDWICH,
            keys={
                **_PATTERN, **_SOFT_CAPS, "block_count": (_query_scale(62), int),
                "rope.freq_base_swa": ("rope_local_base_freq", float),
            },
        ),
    ),
    "phi3": (
        Architecture(
            name="Phi3ForCausalLM", model_type="phi3", partial=True, there={}, keys=WINDOW,
            parts={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
        ),
    ),
    "chatglm": (_GLM,),
    "glm4": (
        Architecture(
            name="Glm4ForCausalLM", model_type="glm4", partial=True, there=_GLM.there,
            parts={
                **_GLM.parts, "post_attention_norm": "post_self_attn_layernorm",
                "post_ffw_norm": "post_mlp_layernorm",
            },
        ),
    ),
    "baichuan": (
        Architecture(
            name="BaichuanForCausalLM", model_type="baichuan", interleaved=True, there={},
            parts=dict.fromkeys(("attn_q", "attn_k", "attn_v"), "self_attn.W_pack"),
            without=frozenset(("num_key_value_heads",)),
        ),
    ),
    "internlm2": (
        Architecture(
            name="InternLMForCausalLM", model_type="internlm", interleaved=True, fixed={"bias": False}, there={},
        ),
    ),
    "xverse": (Architecture(name="XverseForCausalLM", model_type="xverse", interleaved=True),),
    "minicpm": (
        Architecture(
            name="MiniCPMForCausalLM", model_type="minicpm", interleaved=True,
            fixed={"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256.0},
            keys={
                "embedding_scale": ("scale_emb", float), "residual_scale": (_depth, float),
                "logit_scale": (_base, float),
            },
        ),
    ),
    "granite": (Architecture(name="GraniteForCausalLM", model_type="granite", interleaved=True, keys=_MULTIPLIERS),),
    "olmo2": (
        Architecture(
            name="Olmo3ForCausalLM", model_type="olmo3", parts=_POST, keys=_PATTERN, when="attention.sliding_window",
        ),
        _OLMO2,
    ),
    "smollm3": (Architecture(name="SmolLM3ForCausalLM", model_type="smollm3", interleaved=True, there=_LLAMA_BIASES),),
    "ernie4_5": (Architecture(name="Ernie4_5ForCausalLM", model_type="ernie4_5", there={"use_bias": "attn_q.bias"}),),
    "seed_oss": (
        Architecture(
            name="SeedOssForCausalLM", model_type="seed_oss",
            parts={"post_attention_norm": "post_attention_layernorm"},
            there={**BIASES, "attention_out_bias": "attn_output.bias"},
        ),
    ),
    "hunyuan-dense": (
        Architecture(
            name="HunYuanDenseV1ForCausalLM", model_type="hunyuan_v1_dense",
            parts={"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
        ),
    ),
    "exaone": (Architecture(name="ExaoneForCausalLM", model_type="exaone", there={}),),
    "exaone4": (
        Architecture(name="Exaone4ForCausalLM", model_type="exaone4", parts=_POST, there={}, keys=_PATTERN),
    ),
}  # fmt: skip
