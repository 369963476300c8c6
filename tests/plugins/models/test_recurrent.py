"""Recurrent and hybrid families give transformers' logits, whole, in chunks, in mixed batches and while decoding."""

import json
from pathlib import Path
from typing import Any

import pytest

from lsv.errors import CheckpointError, ConfigError
from lsv.platform import Group
from lsv.testing.model import SCHEDULES, Sequences, check_model, engine_config, load, run_schedule
from lsv.worker.load.bound import bind
from lsv.worker.load.declared import declare

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
OFFERS = {"qwen3_5_text": "qwen3_5"}
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
    "nemotron h": ("nemotron_h", NEMOTRON),
    "granite hybrid": ("granitemoehybrid", GRANITE),
    "granite hybrid rope": ("granitemoehybrid", {**GRANITE, "position_embedding_type": "rope"}),
    "falcon h1": ("falcon_h1", FALCON),
    "falcon h1 normed": ("falcon_h1", {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "lfm2": ("lfm2", LFM2),
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


@pytest.mark.parametrize("case", CASES)
def test_family_runs_in_bfloat16(case, checkpoint, catalog):
    family, shape = CASES[case]
    declared = load(engine_config(checkpoint(family, **shape), OFFERS.get(family, family), dtype="bfloat16"), catalog)
    logits = run_schedule(Sequences(declared), SCHEDULES["mixed"])
    assert all(bool(one.isfinite().all()) for one in logits.values())
