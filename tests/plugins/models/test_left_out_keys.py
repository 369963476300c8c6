"""What a config.json leaves out, or has null, is what transformers takes it for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lsv_base.errors import CheckpointError
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import SCHEDULES, Sequences, compare_logits, engine_config, load, reference_model, run_schedule

HEADS = {"head_dim": 16}
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
ROPE = ("rope_parameters",)
WINDOW = {"sliding_window": 8}
WANTED = {**WINDOW, "use_sliding_window": True}
SMALL_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
QWEN2_MOE = {**SMALL_EXPERTS, "shared_expert_intermediate_size": 32, "num_hidden_layers": 3}
GPT_OSS = {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}
OLMO = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"], "spread": 0.08,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "gemma2 caps": ("gemma2", {}, CAPS, {}),
    "gemma2 without caps": ("gemma2", {}, (), dict.fromkeys(CAPS)),
    "vaultgemma caps": ("vaultgemma", HEADS, CAPS, {}),
    "gemma3 caps": ("gemma3_text", HEADS, CAPS, {}),
    "cohere rope": ("cohere", {}, ROPE, {}),
    "ernie4_5 rope": ("ernie4_5", HEADS, ROPE, {}),
    "smollm3 rope": ("smollm3", {}, ROPE, {}),
    "gpt_oss rope": ("gpt_oss", GPT_OSS, ROPE, {}),
    "gpt_oss base": ("gpt_oss", GPT_OSS, ROPE, {"rope_theta": 77.0}),
    "olmo_hybrid rope": ("olmo_hybrid", OLMO, ROPE, {}),
    "olmo_hybrid base": ("olmo_hybrid", OLMO, (), {"rope_parameters": {"rope_type": "default", "rope_theta": None}}),
    "qwen2 window": ("qwen2", {}, ("use_sliding_window", "layer_types"), {**WINDOW, "max_window_layers": 0}),
    "qwen2 windows": ("qwen2", {}, ("layer_types", "max_window_layers"), WANTED),
    "qwen3 window": ("qwen3", {}, ("use_sliding_window", "layer_types"), {**WINDOW, "max_window_layers": 0}),
    "qwen3_moe window": ("qwen3_moe", {}, ("use_sliding_window",), WINDOW),
    "qwen3_moe windows": ("qwen3_moe", {}, (), {**WANTED, "max_window_layers": 1}),
    "qwen2_moe window": ("qwen2_moe", QWEN2_MOE, ("use_sliding_window", "layer_types"), WINDOW),
    "qwen2_moe windows": ("qwen2_moe", QWEN2_MOE, ("layer_types",), {**WANTED, "max_window_layers": 2}),
}
OFFERS = {"gemma3_text": "gemma3", "hunyuan_v1_dense": "hunyuan"}


def rewrite(path: Path, folder: Path, left_out: tuple[str, ...], given: dict[str, Any]) -> Path:
    """A checkpoint with another config.json, in ``folder``."""
    shutil.copytree(path, folder, dirs_exist_ok=True)
    keys = json.loads((path / "config.json").read_text())
    kept = {key: value for key, value in keys.items() if key not in left_out}
    (folder / "config.json").write_text(json.dumps({**kept, **given}))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_what_is_left_out_is_what_transformers_takes(case, checkpoint, catalog, tmp_path):
    family, shape, left_out, given = CASES[case]
    path = rewrite(checkpoint(family, **shape), tmp_path, left_out, given)
    config = engine_config(path, OFFERS.get(family, family))
    found = run_schedule(Sequences(load(config, catalog)), SCHEDULES["whole"], {0: tuple(range(40))})
    assert compare_logits(case, found, {0: reference_model(config)(range(40))}).error <= 1e-4


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "a window of nothing": ("mistral", {}, {"sliding_window": 0}, "sliding_window must be positive"),
    "a window of nemotron_h": (
        "nemotron_h", {"layers_block_type": ["mamba", "attention"], "mamba_num_heads": 8, "mamba_head_dim": 16},
        WINDOW, "sliding_window is 8, and this architecture has None",
    ),
    "a convolution over one token": (
        "lfm2", {"layer_types": ["conv", "full_attention"]}, {"conv_L_cache": 1}, "sees two tokens at least",
    ),
    "no groups": (
        "deepseek_v3", {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1},
        {"topk_group": 0}, "topk_group must be positive",
    ),
    "blocks that are not shared": (
        "zamba", {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4, "n_mamba_heads": 4,
                  "num_key_value_heads": 4},
        {"tie_word_embeddings": False}, "tie_word_embeddings is False, and this architecture has True",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_t_be_followed_is_refused(case, checkpoint, catalog, tmp_path):
    family, shape, given, why = REFUSED[case]
    path = rewrite(checkpoint(family, **shape), tmp_path, (), given)
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(path, family), catalog)
