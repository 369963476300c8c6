"""A checkpoint of every family, written as llama.cpp's converter writes it, gives the logits of the checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv.plugins.catalog import Catalog
from lsv_base.errors import CheckpointError
from lsv_models import plugin
from lsv_quant import plugin as quant
from lsv_quant.gguf.families import FAMILIES
from lsv_quant.gguf.prepare import prepare
from lsv_testing.catalog import catalog_of
from lsv_testing.model import SCHEDULES, Sequences, engine_config, load, run_schedule
from lsv_testing.tiny import tiny

Tensor = tuple[str, tuple[int, ...], np.ndarray[Any, np.dtype[Any]]]
Write = Callable[[Path, Mapping[str, Any], Mapping[str, Tensor]], Path]
Tensors = dict[str, torch.Tensor]
Change = Callable[[str, torch.Tensor, "Numbers"], Iterator[tuple[str, torch.Tensor]]]
"""One tensor of a layer, by the name below it -> those of the file, by theirs."""

NAMES = {
    "input_layernorm": "attn_norm", "ln_1": "attn_norm", "norm_1": "attn_norm", "norm_attn_norm.norm_1": "attn_norm",
    "ln_mlp": "attn_norm", "ln_attn": "attn_norm_2", "post_attention_layernorm": "ffn_norm", "ln_2": "ffn_norm",
    "norm_2": "ffn_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "post_mlp_layernorm": "post_ffw_norm", "post_self_attn_layernorm": "post_attention_norm",
    "norm_attn_norm.norm_2": "attn_output_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.dense": "attn_output", "attn.c_proj": "attn_output",
    "attention.dense": "attn_output", "self_attention.dense": "attn_output", "attn.out_proj": "attn_output",
    "norm_attn_norm.attn.out_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv", "attn.c_attn": "attn_qkv", "attn.Wqkv": "attn_qkv",
    "norm_attn_norm.attn.Wqkv": "attn_qkv", "attention.query_key_value": "attn_qkv",
    "self_attention.query_key_value": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate_up_proj": "ffn_up",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down", "ffn.up_proj": "ffn_up",
    "ffn.down_proj": "ffn_down", "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.gate.wg": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "feed_forward.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.router.layer": "ffn_gate_inp", "ffn.router.layer": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    "ffn.experts.mlp.w1": "ffn_gate_exps.weight", "ffn.experts.mlp.v1": "ffn_up_exps.weight",
    "ffn.experts.mlp.w2": "ffn_down_exps.weight", "block_sparse_moe.output_linear": "ffn_down_exps",
    "shared_mlp.output_linear": "ffn_down_shexp",
    **{
        f"{place}.{part}_proj": f"ffn_{part}_shexp"
        for place in ("mlp.shared_expert", "mlp.shared_experts", "mlp.shared_mlp", "feed_forward.shared_expert")
        for part in ("gate", "up", "down")
    },
}  # fmt: skip
"""Below a layer: of gguf-py's ``tensor_mapping.py``."""
ENDS = {
    "embed_tokens": "token_embd", "wte": "token_embd", "embed_in": "token_embd", "word_embeddings": "token_embd",
    "wpe": "position_embd", "norm": "output_norm", "ln_f": "output_norm", "norm_f": "output_norm",
    "final_layer_norm": "output_norm", "final_layernorm": "output_norm", "lm_head": "output", "embed_out": "output",
    "word_embeddings_layernorm": "token_embd_norm",
}  # fmt: skip
_LAYER = re.compile(r".*\.(?:layers|h|blocks)\.(\d+)\.(.*?)(?:\.(weight|bias))?")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_STACKS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}


class Numbers:
    """Of a config.json."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoConfig

        self.json = json.loads((path / "config.json").read_text())
        self.config = AutoConfig.from_pretrained(path)

    def get(self, *names: str) -> Any:
        return next((found for name in names if (found := getattr(self.config, name, None)) is not None), None)

    @property
    def heads(self) -> int:
        return int(self.get("num_attention_heads"))

    @property
    def kv_heads(self) -> int:
        return int(self.get("num_kv_heads", "num_key_value_heads") or self.heads)


def neighbours(name: str, tensor: torch.Tensor, of: Numbers) -> Iterator[tuple[str, torch.Tensor]]:
    """``LlamaModel.permute``."""
    heads = of.heads if ".q_proj" in name else of.kv_heads if ".k_proj" in name else 0
    if heads:
        tensor = (
            tensor.reshape(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
        )
    yield name, tensor


def offset(name: str, tensor: torch.Tensor, of: Numbers) -> Iterator[tuple[str, torch.Tensor]]:
    yield name, tensor + 1 if name.endswith(("norm.weight", "norm")) else tensor


def apart(name: str, tensor: torch.Tensor, of: Numbers) -> Iterator[tuple[str, torch.Tensor]]:
    """q, k and v of each KV head -> all of q, all of k, all of v."""
    if "query_key_value" in name:
        shape, kv = tensor.shape, of.kv_heads
        groups = tensor.view(kv, of.heads // kv + 2, -1, *shape[1:])
        tensor = torch.cat([part.reshape(-1, *shape[1:]) for part in (groups[:, :-2], groups[:, -2], groups[:, -1])])
    yield name, tensor


def turned(name: str, tensor: torch.Tensor, of: Numbers) -> Iterator[tuple[str, torch.Tensor]]:
    """GPT-2's linear weights are [inputs, outputs]."""
    yield name, tensor.T if tensor.ndim == 2 else tensor


def halves(name: str, tensor: torch.Tensor, of: Numbers) -> Iterator[tuple[str, torch.Tensor]]:
    """DeepSeek's second projection, in two."""
    if not name.startswith("self_attn.kv_b_proj"):
        yield name, tensor
        return
    plain, values = of.get("qk_nope_head_dim"), of.get("v_head_dim")
    keys, values = tensor.view(of.heads, plain + values, -1).split([plain, values], dim=1)
    yield "attn_k_b.weight", keys.mT
    yield "attn_v_b.weight", values


def granite(name: str, tensor: torch.Tensor, of: Numbers) -> Iterator[tuple[str, torch.Tensor]]:
    stacks = {"block_sparse_moe.input_linear": "exps", "shared_mlp.input_linear": "shexp"}
    place = stacks.get(name.removesuffix(".weight"))
    if place is None:
        yield from neighbours(name, tensor, of)
        return
    gate, up = tensor.chunk(2, dim=-2)
    yield from ((f"ffn_gate_{place}.weight", gate), (f"ffn_up_{place}.weight", up))


def fused(*, every_second: bool) -> Change:
    """Experts [experts, inputs, outputs]."""

    def change(name: str, tensor: torch.Tensor, of: Numbers) -> Iterator[tuple[str, torch.Tensor]]:
        own, _, bias = name.partition("_proj_")
        if not own.endswith(("experts.gate_up_proj", "experts.down_proj", "experts.gate_up", "experts.down")):
            yield name, tensor
            return
        tensor, end = (tensor, "bias") if bias else (tensor.mT, "weight")
        if "gate_up" not in own:
            yield f"ffn_down_exps.{end}", tensor
            return
        rows = tensor.shape[1]
        cuts = (slice(0, None, 2), slice(1, None, 2)) if every_second else (slice(0, rows // 2), slice(rows // 2, None))
        for part, cut in zip(("gate", "up"), cuts, strict=True):
            yield f"ffn_{part}_exps.{end}", tensor[:, cut]

    return change


def rows_of_experts(name: str, tensor: torch.Tensor, of: Numbers) -> Iterator[tuple[str, torch.Tensor]]:
    if ".experts.mlp." not in name:
        yield name, tensor
        return
    tensor = tensor.view(of.json["ffn_config"]["moe_num_experts"], -1, tensor.shape[-1])
    yield name, tensor.mT if name.endswith("w2") else tensor


@dataclass(frozen=True)
class Case:
    """A tiny checkpoint, and what its file has besides what every file has."""

    family: str
    shape: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    """By the file's key the names of config.json, or a value."""
    change: Change = lambda name, tensor, of: iter([(name, tensor)])
    names: Mapping[str, str] = field(default_factory=dict)
    factors: Mapping[str, str] = field(default_factory=dict)
    """Tensors of rope factors, by their keys in the config's rope."""


HEADS = {"head_dim": 16}
WINDOW = {"attention.sliding_window": ("sliding_window",)}
POST = {"post_attention_layernorm": "post_attention_norm"}
CAPS = {
    "attn_logit_softcapping": ("attn_logit_softcapping",), "final_logit_softcapping": ("final_logit_softcapping",),
}  # fmt: skip
LOCALS = {"num_local_experts": 4, "num_experts_per_tok": 2}
EXPERTS = {
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",), "expert_feed_forward_length": ("moe_intermediate_size",),
}  # fmt: skip
ROUTED = {
    **EXPERTS, "expert_shared_count": ("n_shared_experts",), "leading_dense_block_count": ("first_k_dense_replace",),
    "expert_weights_scale": ("routed_scaling_factor",), "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",), "expert_weights_norm": ("norm_topk_prob",),
}  # fmt: skip
GROUPED = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 32,
    "first_k_dense_replace": 1, "routed_scaling_factor": 1.7, "n_shared_experts": 2,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 12, "v_head_dim": 16, "num_key_value_heads": 4,
}  # fmt: skip
OF_LATENT = {
    "attention.kv_lora_rank": ("kv_lora_rank",), "attention.head_count_kv": 1, "attention.key_length": 32,
    "attention.value_length": 24, "attention.key_length_mla": 20, "attention.value_length_mla": 16,
    "rope.dimension_count": 8,
}  # fmt: skip
MULTIPLIERS = {
    "embedding_multiplier": 3.0, "logits_scaling": 4.0, "residual_multiplier": 0.3, "attention_multiplier": 0.1,
}  # fmt: skip
OF_GRANITE = {
    "attention.scale": ("attention_multiplier",), "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",), "logit_scale": ("logits_scaling",),
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 8.0], "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 1e4, "beta_fast": 32.0,
    "beta_slow": 1.0,
}  # fmt: skip
OF_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64}
NORMED = {"use_qk_norm": True}
SECTIONS = {"rope.dimension_sections": [3, 3, 2, 0]}
CASES: dict[str, Case] = {
    "llama": Case("llama", {"attention_bias": True, "mlp_bias": True}, {"rope.dimension_count": 16}, neighbours),
    "qwen2": Case("qwen2"),
    "qwen2vl": Case("qwen2", keys=SECTIONS),
    "qwen3": Case("qwen3"),
    "qwen3vl": Case("qwen3", keys={**SECTIONS, "n_deepstack_layers": 3}),
    "gemma": Case("gemma", HEADS, change=offset),
    "gemma2": Case(
        "gemma2", {"sliding_window": 9, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0},
        {**WINDOW, **CAPS}, offset, POST,
    ),
    "gemma3": Case("gemma3_text", {**HEADS, "sliding_window": 9, "num_hidden_layers": 3, "query_pre_attn_scalar": 16,
                                   "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
                   {**WINDOW, "attention.sliding_window_pattern": [True, True, False], "rope.freq_base": 1e6},
                   offset, POST),
    "phi3": Case("phi3", {"sliding_window": 9}, {**WINDOW, "rope.dimension_count": 16}),
    "phi3 long": Case(
        "phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 64},
        {"rope.dimension_count": 12, "rope.scaling.original_context_length": 64},
        factors={"rope_factors_long": "long_factor", "rope_factors_short": "short_factor"},
    ),
    "chatglm": Case("glm", HEADS, {"rope.dimension_count": 8}),
    "glm4": Case("glm4", HEADS, {"rope.dimension_count": 8}),
    "granite": Case("granite", MULTIPLIERS, OF_GRANITE, neighbours),
    "olmo2": Case("olmo2", names=POST),
    "olmo2 of the third generation": Case(
        "olmo3", {"sliding_window": 9, "num_hidden_layers": 4, "rope_parameters": {
            "full_attention": {**YARN, "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
        }},
        {**WINDOW, **OF_YARN, "attention.sliding_window_pattern": [True, True, True, False], "rope.freq_base": 5e5},
        names=POST,
    ),
    "smollm3": Case("smollm3", {"num_hidden_layers": 4}, change=neighbours),
    "ernie4_5": Case("ernie4_5", HEADS),
    "seed_oss": Case("seed_oss", HEADS, names=POST),
    "hunyuan-dense": Case("hunyuan_v1_dense", HEADS),
    "exaone4": Case("exaone4", {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
                    {**WINDOW, "attention.sliding_window_pattern": [True, False]}, names=POST),
    "gpt2": Case("gpt2", change=turned),
    "starcoder": Case("gpt_bigcode", keys={"attention.head_count_kv": 1}),
    "gptneox": Case("gpt_neox", {"use_parallel_residual": False}, {"use_parallel_residual": ("use_parallel_residual",),
                                                                    "rope.dimension_count": 4}, apart),
    "bloom": Case("bloom", change=apart),
    "mpt": Case("mpt", {"attn_config": {"clip_qkv": 0.5}}, {"attention.clamp_kqv": 0.5, "attention.max_alibi_bias": 8}),
    "falcon": Case("falcon", change=apart),
    "falcon of two norms": Case(
        "falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_key_value_heads": 2}, change=apart
    ),
    "phi2": Case("phi", keys={"rope.dimension_count": 8}),
    "stablelm": Case("stablelm", {"use_qkv_bias": True}, {"rope.dimension_count": 4, "use_parallel_residual": False}),
    "starcoder2": Case("starcoder2"),
    "command-r": Case("cohere", {**NORMED}, {"logit_scale": ("logit_scale",)}),
    "cohere2": Case(
        "cohere2", {"num_hidden_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
        {"logit_scale": ("logit_scale",), **WINDOW},
    ),
    "nemotron": Case("nemotron", change=offset, keys={"rope.dimension_count": 8}),
    "olmo": Case("olmo", {"clip_qkv": 0.5}, {"attention.clamp_kqv": ("clip_qkv",)}, neighbours),
    "qwen2moe": Case(
        "qwen2_moe", {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
                      "shared_expert_intermediate_size": 48},
        {**EXPERTS, "expert_shared_feed_forward_length": 48},
    ),
    "qwen3moe": Case("qwen3_moe", {"mlp_only_layers": []}, EXPERTS),
    "qwen3vlmoe": Case("qwen3_moe", {"mlp_only_layers": []}, {**EXPERTS, **SECTIONS}),
    "olmoe": Case("olmoe", {"num_experts": 8, "num_experts_per_tok": 3}, EXPERTS),
    "deepseek2 of the third version": Case(
        "deepseek_v3", {**LATENT, **GROUPED, "q_lora_rank": 20, "rope_parameters": {
            **YARN, "mscale": 0.7, "mscale_all_dim": 0.7,
        }},
        {**ROUTED, **OF_LATENT, **OF_YARN, "attention.q_lora_rank": 20, "rope.scaling.yarn_log_multiplier": 0.07,
         "expert_gating_func": 2}, halves,
    ),
    "deepseek2": Case(
        "deepseek_v2", {**LATENT, **GROUPED, "q_lora_rank": None, "topk_method": "group_limited_greedy"},
        {**ROUTED, **OF_LATENT}, halves,
    ),
    "glm4moe": Case(
        "glm4_moe", {**GROUPED, **NORMED, **HEADS, "attention_bias": True},
        {**ROUTED, "rope.dimension_count": 8, "nextn_predict_layers": 0}, names=POST,
    ),
    "granitemoe": Case(
        "granitemoeshared", {**LOCALS, **MULTIPLIERS, "shared_intermediate_size": 48},
        {**EXPERTS, **OF_GRANITE, "expert_shared_feed_forward_length": 48}, granite,
    ),
    "ernie4_5-moe": Case(
        "ernie4_5_moe", {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32},
        {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 32, "expert_shared_count": 2,
         "leading_dense_block_count": 1, "interleave_moe_layer_step": 1},
    ),
    "hunyuan-moe": Case(
        "hunyuan_v1_moe", {"num_experts": 4, "moe_topk": 2, **HEADS},
        {"expert_count": 4, "expert_used_count": 2, "expert_shared_count": 1, "expert_feed_forward_length": 96,
         "expert_shared_feed_forward_length": 96},
    ),
    "dbrx": Case(
        "dbrx", {
            "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512, "vocab_size": 320,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.7, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
        },
        {"attention.head_count_kv": 2, "attention.clamp_kqv": 0.7, "feed_forward_length": 32, "expert_count": 4,
         "expert_used_count": 2, "attention.layer_norm_epsilon": 1e-5}, rows_of_experts,
    ),
    "phimoe": Case("phimoe", {**LOCALS, "attention_bias": True, "lm_head_bias": True}, {**EXPERTS}),
    "llama4": Case(
        "llama4_text", {**LOCALS, **HEADS, "num_hidden_layers": 4, "intermediate_size_mlp": 48,
                        "num_experts_per_tok": 1, "interleave_moe_layer_step": 2},
        {**EXPERTS, "feed_forward_length": 48, "expert_feed_forward_length": 96, "interleave_moe_layer_step": 2},
        fused(every_second=False),
    ),
    "gpt-oss": Case(
        "gpt_oss", {**LOCALS, **HEADS, "sliding_window": 9, "rope_parameters": {**YARN, "truncate": False}},
        {**EXPERTS, **WINDOW, **OF_YARN, "expert_feed_forward_length": 96}, fused(every_second=True), POST,
    ),
}  # fmt: skip
UNROTATED = ("gpt2", "bloom", "mpt", "gpt_bigcode", "gemma", "falcon")
"""Their files say nothing of a rope: they have none, or the usual one."""


def metadata(case: Case, arch: str, of: Numbers) -> dict[str, Any]:
    base = {
        "block_count": ("num_hidden_layers", "n_layers"), "context_length": ("max_position_embeddings", "max_seq_len"),
        "embedding_length": ("hidden_size", "d_model"), "feed_forward_length": ("intermediate_size", "n_inner"),
        "attention.head_count": ("num_attention_heads", "n_heads"),
        "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
        "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_eps"),
        "attention.key_length": ("head_dim",), "attention.value_length": ("head_dim",),
    }  # fmt: skip
    if case.family not in UNROTATED:
        rope = of.get("rope_parameters") or {}
        base |= {"rope.freq_base": rope.get("full_attention", rope).get("rope_theta", 10000.0)}
    if of.get("num_key_value_heads") is not None:
        base |= {"attention.head_count_kv": of.kv_heads}
    found = {"general.architecture": arch, "tokenizer.ggml.eos_token_id": 257}
    for key, names in {**base, **case.keys}.items():
        value = of.get(*names) if isinstance(names, tuple) else names
        if value is not None:
            found[f"{arch}.{key}"] = float(value) if "epsilon" in key or "scale" in key else value
    size = found[f"{arch}.embedding_length"]
    found.setdefault(f"{arch}.feed_forward_length", of.json.get("ffn_hidden_size") or 4 * size)
    return found


def convert(case: Case, path: Path, of: Numbers) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint, under the file's names."""
    names, found, stacks = {**NAMES, **case.names}, {}, {}
    for name, tensor in load_file(path / "model.safetensors").items():
        match = _LAYER.fullmatch(name)
        expert = _EXPERT.fullmatch(name)
        if match is None:
            stem, _, end = name.rpartition(".")
            own = stem.rpartition(".")[2]
            if case.change is offset:
                ((_, tensor),) = offset(f"{own}.{end}", tensor, of)
            found[f"{ENDS[own]}.{end}"] = tensor
        elif expert is not None:
            stacks.setdefault((match[1], _STACKS[expert[3]]), {})[int(expert[2])] = tensor
        elif "layernorm.norms" in name:
            stacks.setdefault((match[1], match[2].split("_")[1][-1]), {})[int(match[2].rpartition(".")[2])] = tensor
        else:
            whole = f"{match[2]}.{match[3]}" if match[3] else match[2]
            for own, changed_ in case.change(whole, tensor, of):
                stem = own.removesuffix(".weight").removesuffix(".bias")
                known = names.get(own) or (f"{names[stem]}{own.removeprefix(stem)}" if stem in names else own)
                found[f"blk.{match[1]}.{known}"] = changed_
    for (layer, part), members in stacks.items():
        name = f"attn_{part}_norm" if len(part) == 1 else f"ffn_{part}_exps"
        found[f"blk.{layer}.{name}.weight"] = torch.stack([members[number] for number in sorted(members)])
    rope = of.json.get("rope_parameters") or {}
    found |= {f"{name}.weight": torch.tensor(rope[key]) for name, key in case.factors.items()}
    return found


def pack(tensor: torch.Tensor) -> Tensor:
    return "F32", tuple(tensor.shape), tensor.float().contiguous().numpy()


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return catalog_of(plugin, quant)


def logits(path: Path, catalog: Catalog) -> Mapping[int, torch.Tensor]:
    name = json.loads((path / "config.json").read_text())["architectures"][0]
    offer = catalog.architecture(name).name
    config = json.loads((path / "config.json").read_text())
    method = config.get("quantization_config", {}).get("quant_method", "")
    settings = engine_config(path, offer, max_len=64, **({"quantization": method} if method else {}))
    return run_schedule(Sequences(load(settings, catalog)), SCHEDULES["whole"])


QUICK = ("gemma2", "phi3 long", "chatglm", "gptneox", "stablelm", "deepseek2 of the third version", "gpt-oss")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in CASES])
def test_a_file_has_the_logits_of_its_checkpoint(
    name: str, tmp_path: Path, write_gguf: Write, catalog: Catalog
) -> None:
    case, arch = CASES[name], name.split()[0]
    checkpoint = tiny(case.family, tmp_path / "checkpoint", **case.shape)
    of = Numbers(checkpoint)
    tensors = {name: pack(tensor) for name, tensor in convert(case, checkpoint, of).items()}
    made = Path(prepare(str(write_gguf(tmp_path / "model.gguf", metadata(case, arch, of), tensors))))
    found, expected = logits(made, catalog), logits(checkpoint, catalog)
    for sequence, wanted in expected.items():
        torch.testing.assert_close(found[sequence], wanted, rtol=1e-4, atol=1e-4)


PLAIN = {"attention_bias": False, "mlp_bias": False, "bias": False}
RENAMED: dict[str, tuple[Change | None, str, Mapping[str, Any]]] = {
    "internlm2": (neighbours, "InternLMForCausalLM", {}),
    "xverse": (neighbours, "XverseForCausalLM", {}),
    "exaone": (None, "LlamaForCausalLM", {}),
    "minicpm": (
        neighbours, "MiniCPMForCausalLM", {"scale_emb": 3.0, "scale_depth": 0.5, "dim_model_base": 16.0},
    ),
    "baichuan": (neighbours, "BaichuanForCausalLM", {"num_key_value_heads": 4}),
}  # fmt: skip
"""Families that transformers lacks, with Llama's tensors: what is done to them, the architecture, and its config."""
OF_MINICPM = {"embedding_scale": 3.0, "residual_scale": 0.5 / 2**0.5, "logit_scale": 64 / 16.0}


@pytest.mark.parametrize("arch", RENAMED)
def test_a_relative_of_llama_has_its_logits(arch: str, tmp_path: Path, write_gguf: Write, catalog: Catalog) -> None:
    change, name, changes = RENAMED[arch]
    shape = {key: value for key, value in changes.items() if key == "num_key_value_heads"}
    checkpoint = tiny("llama", tmp_path / "checkpoint", **shape)
    case = Case("llama", keys=OF_MINICPM if arch == "minicpm" else {}, **({"change": change} if change else {}))
    of = Numbers(checkpoint)
    tensors = {own: pack(tensor) for own, tensor in convert(case, checkpoint, of).items()}
    made = Path(prepare(str(write_gguf(tmp_path / "model.gguf", metadata(case, arch, of), tensors))))
    become(checkpoint, name, {key: value for key, value in {**PLAIN, **changes}.items() if key not in shape})
    found, expected = logits(made, catalog), logits(checkpoint, catalog)
    for sequence, wanted in expected.items():
        torch.testing.assert_close(found[sequence], wanted, rtol=1e-4, atol=1e-4)


def become(checkpoint: Path, architecture: str, changes: Mapping[str, Any]) -> None:
    """Another architecture with the same weights; Baichuan has q, k and v in one tensor."""
    place, tensors = checkpoint / "config.json", load_file(checkpoint / "model.safetensors")
    config = json.loads(place.read_text()) | {"architectures": [architecture], **changes}
    if architecture == "BaichuanForCausalLM":
        del config["num_key_value_heads"]
        for layer in range(config["num_hidden_layers"]):
            names = [f"model.layers.{layer}.self_attn.{part}_proj.weight" for part in "qkv"]
            tensors[f"model.layers.{layer}.self_attn.W_pack.weight"] = torch.cat([tensors.pop(name) for name in names])
    place.write_text(json.dumps(config))
    save_file(tensors, checkpoint / "model.safetensors", metadata={"format": "pt"})


def rounded(tensor: torch.Tensor) -> tuple[Tensor, Tensor]:
    """A matrix in Q8_0, and the numbers that it stands for."""
    numbers = tensor.float().contiguous()
    if numbers.ndim == 1 or numbers.shape[-1] % 32:
        return pack(numbers), pack(numbers)
    blocks = numbers.reshape(-1, 32).numpy()
    scales = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    codes = np.round(blocks / scales.astype(np.float32)).clip(-127, 127).astype(np.int8)
    data = np.concatenate((scales.view(np.uint8), codes.view(np.uint8)), axis=1)
    return ("Q8_0", tuple(numbers.shape), data), pack(
        torch.from_numpy(codes * scales.astype(np.float32)).view(numbers.shape)
    )


ROUNDED = ("llama", "gptneox", "falcon of two norms", "chatglm", "dbrx", "granitemoe", "deepseek2", "gpt-oss")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("gptneox", "gpt-oss"))) for name in ROUNDED]
)
def test_codes_lie_where_numbers_do(name: str, tmp_path: Path, write_gguf: Write, catalog: Catalog) -> None:
    case, arch = CASES[name], name.split()[0]
    of = Numbers(tiny(case.family, tmp_path / "checkpoint", **{**case.shape, "intermediate_size": 96}))
    known = {own: rounded(tensor) for own, tensor in convert(case, tmp_path / "checkpoint", of).items()}
    keys = metadata(case, arch, of)
    answers = []
    for number, form in enumerate(("coded", "plain")):
        tensors = {own: pair[number] for own, pair in known.items()}
        made = Path(prepare(str(write_gguf(tmp_path / f"{form}.gguf", keys, tensors))))
        layers = json.loads((made / "config.json").read_text()).get("quantization_config", {}).get("layers", {})
        assert bool(layers) == (form == "coded")
        answers.append(logits(made, catalog))
    for sequence, wanted in answers[1].items():
        torch.testing.assert_close(answers[0][sequence], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("gptneox", "attention.head_count_kv", 0, "heads of q and 0 each of k and v"),
        ("deepseek2", "attention.kv_lora_rank", "much", "attention.kv_lora_rank must be int"),
        ("gpt-oss", "expert_count", 2.5, "expert_count must be int"),
        ("gpt-oss", "swiglu_limit", 7.0, r"gpt-oss.swiglu_limit = 7.0"),
        ("deepseek2", "expert_gating_func", 2, "DeepseekV2ForCausalLM scores experts by 1"),
        ("glm4moe", "expert_gating_func", 1, "Glm4MoeForCausalLM scores experts by 2"),
        ("qwen2", "rope.dimension_count", 8, "rope.dimension_count is 8, and heads have 16: this architecture rotates"),
    ],
)
def test_what_a_family_cannot_be_is_refused(
    name: str, key: str, value: Any, message: str, tmp_path: Path, write_gguf: Write
) -> None:
    case = CASES[name]
    of = Numbers(tiny(case.family, tmp_path / "checkpoint", **case.shape))
    tensors = {own: pack(tensor) for own, tensor in convert(case, tmp_path / "checkpoint", of).items()}
    keys = {**metadata(case, name, of), f"{name}.{key}": value}
    with pytest.raises(CheckpointError, match=message):
        prepare(str(write_gguf(tmp_path / "model.gguf", keys, tensors)))


def test_every_family_is_tried() -> None:
    assert {name.split()[0] for name in CASES} | RENAMED.keys() == FAMILIES.keys() - {"qwen", "orion"}
