"""Families of the GPT line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_quant.gguf.architecture import BIASES, WINDOW, Architecture, Config

_GPT2_PARTS = {
    "attn_norm": "ln_1", "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj",
    "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
_GPT2_ENDS = {"token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f"}
_NEOX_MLP = {"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
_FALCON_PARTS = {
    **_NEOX_MLP, "attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense",
}  # fmt: skip
_BLOOM_ENDS = {
    "token_embd": "transformer.word_embeddings", "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
}  # fmt: skip
_ONE = frozenset(("num_key_value_heads",))


def _expansion(value: Any, config: Config) -> Mapping[str, Any]:
    return {"expansion_ratio": value // config["hidden_size"]}


def _gpt2(*, shared: bool) -> Architecture:
    """Linear weights are [outputs, inputs] in these files, as GPT-BigCode has them and GPT-2 has not."""
    return Architecture(
        name="GPTBigCodeForCausalLM", model_type="gpt_bigcode", layers="transformer.h", parts=_GPT2_PARTS,
        ends=_GPT2_ENDS, by_head=True, rope=False, there={}, without=_ONE, fixed={"multi_query": shared},
    )  # fmt: skip


def _falcon(norms: Mapping[str, str], *, grouped: bool, when: str = "") -> Architecture:
    return Architecture(
        name="FalconForCausalLM", model_type="falcon", layers="transformer.h", by_head=True, when=when,
        parts={**_FALCON_PARTS, **norms}, ends=_BLOOM_ENDS,
        there={"bias": "attn_qkv.bias"}, without=frozenset() if grouped else _ONE,
        fixed={
            "new_decoder_architecture": grouped, "multi_query": not grouped, "alibi": False, "parallel_attn": True,
            "num_ln_in_parallel_attn": 2 if grouped and "attn_norm_2" in norms else 1,
        },
    )  # fmt: skip


def _cohere(name: str, model_type: str, **more: Any) -> Architecture:
    keys = {"logit_scale": ("logit_scale", float), **more}
    return Architecture(
        name=name, model_type=model_type, keys=keys, there={**BIASES, "use_qk_norm": "attn_q_norm.weight"}
    )


GPT: Mapping[str, tuple[Architecture, ...]] = {
    "gpt2": (_gpt2(shared=False),),
    "starcoder": (_gpt2(shared=True),),
    "gptneox": (
        Architecture(
            name="GPTNeoXForCausalLM", model_type="gpt_neox", partial=True, layers="gpt_neox.layers", by_head=True,
            parts={
                **_NEOX_MLP, "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense",
            },
            ends={
                "token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out",
            },
            there={"attention_bias": "attn_qkv.bias"}, without=_ONE,
            keys={"use_parallel_residual": ("use_parallel_residual", bool)},
        ),
    ),
    "bloom": (
        Architecture(
            name="BloomForCausalLM", model_type="bloom", layers="transformer.h", by_head=True, rope=False, there={},
            parts=_FALCON_PARTS, ends=_BLOOM_ENDS, without=_ONE,
        ),
    ),
    "mpt": (
        Architecture(
            name="MPTForCausalLM", model_type="mpt", layers="transformer.blocks", rope=False, there={},
            parts={
                "attn_norm": "norm_1", "ffn_norm": "norm_2", "attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj",
                "ffn_up": "ffn.up_proj", "ffn_down": "ffn.down_proj",
            },
            ends={"token_embd": "transformer.wte", "output_norm": "transformer.norm_f"},
            without=_ONE | {"intermediate_size"},
            keys={
                "feed_forward_length": (_expansion, int), "attention.clamp_kqv": ("attn_config.clip_qkv", float),
                "attention.max_alibi_bias": ("attn_config.alibi_bias_max", int),
            },
        ),
    ),
    "falcon": (
        _falcon({"attn_norm_2": "ln_attn", "attn_norm": "ln_mlp"}, grouped=True, when="attn_norm_2.weight"),
        _falcon({}, grouped=False),
    ),
    "phi2": (
        Architecture(
            name="PhiForCausalLM", model_type="phi", partial=True, there={},
            parts={"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
            ends={"output_norm": "model.final_layernorm"},
        ),
    ),
    "stablelm": (
        Architecture(
            name="StableLmForCausalLM", model_type="stablelm", partial=True,
            parts={
                "attn_q_norm.weight": "self_attn.q_layernorm.norms.*.weight",
                "attn_k_norm.weight": "self_attn.k_layernorm.norms.*.weight",
            },
            there={"use_qkv_bias": "attn_q.bias", "qk_layernorm": "attn_q_norm.weight"},
            keys={"use_parallel_residual": ("use_parallel_residual", bool)},
        ),
    ),
    "orion": (Architecture(name="OrionForCausalLM", model_type="orion", there={}),),
    "starcoder2": (
        Architecture(
            name="Starcoder2ForCausalLM", model_type="starcoder2", there={"use_bias": "attn_q.bias"}, keys=WINDOW,
            parts={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        ),
    ),
    "command-r": (_cohere("CohereForCausalLM", "cohere"),),
    "cohere2": (_cohere("Cohere2ForCausalLM", "cohere2", **WINDOW),),
    "nemotron": (
        Architecture(
            name="NemotronForCausalLM", model_type="nemotron", partial=True, offset_norms=True,
            there={**BIASES, "mlp_bias": "ffn_up.bias"},
        ),
    ),
    "olmo": (
        Architecture(
            name="OlmoForCausalLM", model_type="olmo", interleaved=True,
            keys={"attention.clamp_kqv": ("clip_qkv", float)},
        ),
    ),
}  # fmt: skip
