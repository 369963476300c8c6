"""Recurrent and hybrid families give transformers' logits, whole, in chunks, in mixed batches and while decoding."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv.plugins.catalog import Catalog
from lsv_base.errors import CheckpointError, ConfigError
from lsv_runtime.devices.communicator import Group
from lsv_runtime.worker.load.bound import bind
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import SCHEDULES, Sequences, check_model, engine_config, load, run_schedule

TOLERANCE = 1e-4
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16}
JAMBA = {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "num_experts": 4, "mamba_dt_rank": 5}
LFM2 = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16}
DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3, "head_dim": 16,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    "mlp_only_layers": [2],
}  # fmt: skip
NEMOTRON = {
    "layers_block_type": ["mamba", "mlp", "attention", "mamba"], "num_hidden_layers": 4, "mamba_num_heads": 8,
    "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "head_dim": 16, "chunk_size": 16,
}  # fmt: skip
GRANITE = {
    **MAMBA2, "num_local_experts": 0, "layer_types": ["mamba", "attention"], "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 2.0, "shared_intermediate_size": 96,
}  # fmt: skip
FALCON = {
    **MAMBA2, "mamba_d_ssm": 128, "key_multiplier": 0.7, "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.6,
    "attention_in_multiplier": 1.1, "attention_out_multiplier": 0.9, "lm_head_multiplier": 0.5,
    "embedding_multiplier": 2.0, "mlp_multipliers": [0.8, 1.2], "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9],
}  # fmt: skip
SPARSE_DELTA = {name: DELTA[name] for name in DELTA if name != "mlp_only_layers"}
LFM3 = {
    "layer_types": ["conv", "full_attention", "sliding_attention"], "num_hidden_layers": 3, "head_dim": 16,
    "sliding_window": 12,
}  # fmt: skip
LFM2_MOE = {
    "layer_types": LFM2["layer_types"], "num_hidden_layers": 3, "num_dense_layers": 1, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
OLMO = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3, "spread": 0.08,
}  # fmt: skip
LARA = {
    **{name: SPARSE_DELTA[name] for name in SPARSE_DELTA if name != "layer_types"}, "num_hidden_layers": 4,
    "sliding_window": 12, "spread": 0.08,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_key_value_heads": 4, "spread": 0.08,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3,
}  # fmt: skip
KIMI = {**LATENT, "linear_head_dim": 8, "linear_num_heads": 6}
BAILING = {**LATENT, "head_dim": 16, "n_group": 2, "topk_group": 1, "short_conv_kernel_size": 3}
MINIMAX = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3,
    "num_local_experts": 4, "linear_attn_alpha_factor": 1.2, "full_attn_beta_factor": 0.7, "mlp_alpha_factor": 0.9,
    "block_size": 16,
}  # fmt: skip
ROUTED = {
    **NEMOTRON, "layers_block_type": ["mamba", "moe", "attention", "moe"], "n_routed_experts": 4,
    "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 1.5,
}  # fmt: skip
ZAMBA = {
    "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "n_mamba_heads": 4,
    "num_key_value_heads": 4, "mamba_d_state": 8, "mamba_dt_rank": 5, "spread": 0.08,
}  # fmt: skip
ZAMBA2 = {
    "num_hidden_layers": 5, "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"],
    "n_mamba_heads": 8, "num_key_value_heads": 4, "mamba_d_state": 8, "adapter_rank": 4, "num_mem_blocks": 2,
    "use_shared_attention_adapter": True, "use_mem_rope": True, "chunk_size": 16, "spread": 0.08,
}  # fmt: skip
GRIFFIN = {"num_hidden_layers": 4, "attention_window_size": 12, "lru_width": 96}
ZAYA = {
    "head_dim": 16, "num_experts": 3, "moe_intermediate_size": 48, "router_hidden_size": 24, "num_hidden_layers": 3,
    "cca_time0": 3, "spread": 0.08,
}  # fmt: skip
XLSTM = {"num_heads": 4, "qk_dim_factor": 0.5, "v_dim_factor": 1.5, "chunk_size": 16}
FUSED = {
    "mlstm_layer.qkv_opreact.weight": [f"mlstm_layer.{name}.weight" for name in ("q", "k", "v", "ogate_preact")],
    "mlstm_layer.ifgate_preact.weight": [f"mlstm_layer.{name}gate_preact.weight" for name in "if"],
    "mlstm_layer.ifgate_preact.bias": [f"mlstm_layer.{name}gate_preact.bias" for name in "if"],
    "ffn.proj_up_gate_z.weight": ["ffn.proj_up_gate.weight", "ffn.proj_up.weight"],
}
OFFERS = {"qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba", {"state_size": 8, "time_step_rank": 6}),
    "mamba untied": ("mamba", {"state_size": 8, "tie_word_embeddings": False, "use_bias": True}),
    "falcon mamba": ("falcon_mamba", {"state_size": 8}),
    "mamba2": ("mamba2", {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16}),
    "bamba": ("bamba", {**MAMBA2, "num_hidden_layers": 3, "attn_layer_indices": [1]}),
    "bamba limits": ("bamba", {**MAMBA2, "attn_layer_indices": [], "time_step_limit": [0.05, 0.5]}),
    "jamba": ("jamba", JAMBA),
    "qwen3 next": ("qwen3_next", {**DELTA, "spread": 0.08}),  # transformers' own float32 is off by 1e-4 at 0.2
    "qwen3.5": (
        "qwen3_5_text",
        {name: DELTA[name] for name in DELTA if "expert" not in name and name[:3] not in ("moe", "mlp")}
        | {"spread": 0.08},
    ),
    "qwen3.5 moe": ("qwen3_5_moe_text", {**SPARSE_DELTA, "spread": 0.08}),
    "olmo hybrid": ("olmo_hybrid", OLMO),
    "olmo hybrid plain": (
        "olmo_hybrid",
        {**OLMO, "linear_allow_neg_eigval": False, "rope_parameters": {"rope_type": "default", "rope_theta": None}},
    ),
    "lara mini": ("lara_mini", LARA),
    "lara mini untied": (
        "lara_mini",
        {
            **LARA,
            "tie_word_embeddings": False,
            "norm_topk_prob": False,
            "attention_bias": True,
            "layer_types": ["full_attention", "linear_attention", "sliding_attention", "linear_attention"],
        },
    ),
    "nemotron h": ("nemotron_h", NEMOTRON),
    "nemotron h experts": ("nemotron_h", ROUTED),
    "nemotron h narrow experts": ("nemotron_h", {**ROUTED, "moe_latent_size": 24, "norm_topk_prob": False}),
    "kimi linear": ("kimi_linear", KIMI),
    "kimi linear wide": ("kimi_linear", {**KIMI, "q_lora_rank": 16, "mlp_layer_types": ["sparse", "dense", "sparse"]}),
    "bailing hybrid": ("bailing_hybrid", BAILING),
    "bailing hybrid unbounded": ("bailing_hybrid", {**BAILING, "kda_safe_gate": False}),
    "minimax": ("minimax", MINIMAX),
    "granite hybrid experts": ("granitemoehybrid", {**GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "granite hybrid": ("granitemoehybrid", GRANITE),
    "granite hybrid rope": ("granitemoehybrid", {**GRANITE, "position_embedding_type": "rope"}),
    "falcon h1": ("falcon_h1", FALCON),
    "falcon h1 normed": ("falcon_h1", {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "zamba": ("zamba", ZAMBA),
    "zamba by default": (
        "zamba",
        {
            **ZAMBA,
            "layers_block_type": None,
            "num_hidden_layers": 5,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "n_mamba_heads": 1,
        },
    ),
    "zamba2": ("zamba2", ZAMBA2),
    "zamba2 plain": (
        "zamba2",
        {
            **ZAMBA2,
            "use_shared_attention_adapter": False,
            "use_mem_rope": False,
            "num_mem_blocks": 1,
            "num_key_value_heads": 2,
            "add_bias_linear": True,
        },
    ),
    "recurrent gemma": ("recurrent_gemma", GRIFFIN),
    "zaya": ("zaya", ZAYA),
    "zaya windows": (
        "zaya",
        {**ZAYA, "layer_types": ["hybrid", "hybrid_sliding", "hybrid"], "sliding_window": 12},
    ),
    "rwkv": ("rwkv", {"num_hidden_layers": 4, "rescale_every": 2, "attention_hidden_size": 48}),
    "rwkv whole": ("rwkv", {"rescale_every": 0, "tie_word_embeddings": True}),
    "xlstm": ("xlstm", XLSTM),
    "xlstm soft": ("xlstm", {**XLSTM, "gate_soft_cap": 5.0, "qk_dim_factor": 1.0}),
    "lfm2": ("lfm2", LFM2),
    "lfm2 moe": ("lfm2_moe", LFM2_MOE),
    "lfm2 moe plain": (
        "lfm2_moe",
        {**LFM2_MOE, "use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.5},
    ),
    "lfm3": ("lfm3", LFM3),
    "lfm3 by default": ("lfm3", {**LFM3, "layer_types": None, "num_hidden_layers": 6, "use_sandwich_norm": False}),
    "lfm3 ungated": ("lfm3", {**LFM3, "use_attention_gate": False}),
    "lfm2 biased": ("lfm2", {**LFM2, "conv_bias": True, "block_auto_adjust_ff_dim": False}),
}


@pytest.mark.row("F-621")
@pytest.mark.parametrize("case", CASES)
def test_family_equals_transformers(case, checkpoint, catalog):
    family, shape = CASES[case]
    found = check_model(
        engine_config(checkpoint(family, **shape), OFFERS.get(family, family)), catalog, tolerance=TOLERANCE
    )
    print(f"\n{case:24}" + "  ".join(f"{one.schedule} {one.error:.1e}" for one in found))


def test_fused_weights_of_xlstm_are_the_single_ones(checkpoint, catalog, tmp_path: Path):
    family, shape = CASES["xlstm"]
    path = checkpoint(family, **shape)
    tensors = load_file(path / "model.safetensors")
    for place in sorted({name[: name.index(".", len("backbone.blocks.")) + 1] for name in tensors if "blocks" in name}):
        for own, parts in FUSED.items():
            held = [tensors.pop(f"{place}{part}") for part in parts if f"{place}{part}" in tensors]
            tensors[f"{place}{own}"] = torch.cat(held)
    save_file(tensors, tmp_path / "model.safetensors")
    json_ = json.loads((path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**json_, "weight_mode": "fused"}))
    assert_alike(family, path, tmp_path, catalog)


def test_the_first_form_of_a_config_of_kimi_linear_is_read(checkpoint, catalog, tmp_path: Path):
    family, shape = CASES["kimi linear"]
    path = checkpoint(family, **shape)
    (tmp_path / "model.safetensors").symlink_to(path / "model.safetensors")
    json_ = json.loads((path / "config.json").read_text())
    for name in ("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"):
        del json_[name]
    kinds = {"full_attn_layers": [2], "kda_layers": [1, 3]}
    first = {
        "linear_attn_config": {**kinds, "head_dim": 8, "num_heads": 6, "short_conv_kernel_size": 4},
        "first_k_dense_replace": 1, "moe_router_activation_func": "sigmoid", "mla_use_nope": True,
        "use_grouped_topk": True, "moe_layer_freq": 1, "rope_theta": 10000.0, "rope_scaling": None,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**json_, **first}))
    assert_alike(family, path, tmp_path, catalog)


def assert_alike(family: str, path: Path, other: Path, catalog: Catalog) -> None:
    """Two checkpoints give the same logits."""
    one, another = (
        run_schedule(Sequences(load(engine_config(place, family), catalog)), SCHEDULES["mixed"])
        for place in (path, other)
    )
    assert all(torch.allclose(one[sequence], another[sequence], atol=1e-5) for sequence in one)


def test_layers_keep_states_in_groups_of_their_own(checkpoint, catalog):
    family, shape = CASES["bamba"]
    declared = declare(engine_config(checkpoint(family, **shape), OFFERS.get(family, family)), catalog)
    assert [spec.kind for spec in declared.specs] == ["state", "full", "state"]
    state = declared.states[0]
    assert [(part.name, part.shape) for part in state.parts] == [("conv", (3, 192)), ("ssm", (8, 16, 16))]
    assert declared.specs[0].state_bytes == state.state_bytes == 3 * 192 * 4 + 8 * 16 * 16 * 4
    assert [group.kind for group in declared.groups] == ["state", "state", "full"]


@pytest.mark.parametrize("case", CASES)
def test_unknown_keys_are_refused(case, checkpoint, catalog):
    family, shape = CASES[case]
    config = engine_config(
        checkpoint(family, **shape), OFFERS.get(family, family), overrides={"logit_softcap_of_the_future": 30.0}
    )
    with pytest.raises(CheckpointError, match="logit_softcap_of_the_future"):
        declare(config, catalog)


def test_several_ranks_are_refused(checkpoint, catalog):
    family, shape = CASES["mamba2"]

    class Ranks:
        group = Group("tp", (0, 1), 0, "")
        ops = ()

    with pytest.raises(ConfigError, match="recurrent layers can't be split over 2 ranks"):
        declare(engine_config(checkpoint(family, **shape), OFFERS.get(family, family)), catalog, communicator=Ranks())


def test_padded_batches_are_refused(checkpoint, catalog):
    family, shape = CASES["mamba2"]
    config = engine_config(checkpoint(family, **shape), OFFERS.get(family, family), layout="padded")
    with pytest.raises(ConfigError, match="recurrent layers"):
        bind(declare(config, catalog), config, catalog)


@pytest.mark.parametrize(
    ("limits", "why"), [([0.0], "a lower and an upper bound"), ([0.0, "much"], "bound"), ([2.0, 1.0], "bound")]
)
def test_malformed_limits_are_refused(limits, why, checkpoint, catalog, tmp_path: Path):
    family, shape = CASES["mamba2"]
    json_ = json.loads((checkpoint(family, **shape) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**json_, "time_step_limit": limits}))
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(tmp_path, family), catalog)


def test_an_infinite_limit_is_read_as_transformers_writes_it(checkpoint):
    family, shape = CASES["bamba"]
    written = json.loads((checkpoint(family, **shape) / "config.json").read_text())["time_step_limit"]
    assert written == [0.0, {"__float__": "Infinity"}]


@pytest.mark.daily(case=list({family: case for case, (family, _) in reversed(CASES.items())}.values()))
@pytest.mark.parametrize("case", CASES)
def test_family_runs_in_bfloat16(case, checkpoint, catalog):
    family, shape = CASES[case]
    declared = load(engine_config(checkpoint(family, **shape), OFFERS.get(family, family), dtype="bfloat16"), catalog)
    logits = run_schedule(Sequences(declared), SCHEDULES["mixed"])
    assert all(bool(one.isfinite().all()) for one in logits.values())
