"""Every native family gives transformers' logits, whole, in chunks, in mixed batches and while decoding."""

import json
from pathlib import Path
from typing import Any

import pytest

from lsv_base.errors import CheckpointError
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import check_model, compare, engine_config, load

TOLERANCE = 1e-4
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 5e5,
}
CODER = {
    "qkv_bias": False, "shared_expert_intermediate_size": 0, "use_qk_norm": True, "use_sliding_window": False,
}  # fmt: skip
"""What Qwen3-Coder's config.json says beyond that of other Qwen3 mixtures."""
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("llama", "llama", {}),
    "llama tied": ("llama", "llama", {"tie_word_embeddings": True}),
    "llama biased": ("llama", "llama", {"attention_bias": True, "mlp_bias": True}),
    "llama own head_dim": ("llama", "llama", {"head_dim": 32}),
    "llama one kv head": ("llama", "llama", {"num_key_value_heads": 1}),
    "llama3 rope": ("llama", "llama", {"rope_parameters": LLAMA3}),
    "llama yarn rope": ("llama", "llama", {"rope_parameters": YARN}),
    "llama gelu": ("llama", "llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "qwen2": ("qwen2", "qwen2", {}),
    "qwen2 tied": ("qwen2", "qwen2", {"tie_word_embeddings": True}),
    "qwen2 window": ("qwen2", "qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("qwen3", "qwen3", {}),
    "qwen3 biased": ("qwen3", "qwen3", {"attention_bias": True}),
    "mistral": ("mistral", "mistral", {"sliding_window": 9}),
    "mistral no window": ("mistral", "mistral", {"sliding_window": None}),
    "mixtral": ("mixtral", "mixtral", {}),
    "qwen3_moe": ("qwen3_moe", "qwen3_moe", {}),
    "qwen3_moe coder": ("qwen3_moe", "qwen3_moe", CODER),
    "qwen3_moe unnormalised": ("qwen3_moe", "qwen3_moe", {"norm_topk_prob": False, "mlp_only_layers": []}),
}


@pytest.mark.row("F-622", "F-624", "F-625", "F-637", "F-655", "F-660", "F-696")
@pytest.mark.parametrize("case", CASES)
def test_family_equals_transformers(case, checkpoint, catalog, record_property):
    offer, family, shape = CASES[case]
    found = check_model(engine_config(checkpoint(family, **shape), offer), catalog, tolerance=TOLERANCE)
    worst = {comparison.schedule: f"{comparison.error:.1e}" for comparison in found}
    record_property("largest logit difference", json.dumps(worst))
    print(f"\n{case:24}" + "  ".join(f"{schedule} {error}" for schedule, error in worst.items()))


def test_comparison_sees_a_wrong_window(checkpoint, catalog):
    path = checkpoint("mistral", sliding_window=9)
    found = compare(engine_config(path, "mistral", overrides={"sliding_window": None}), catalog)
    assert max(comparison.error for comparison in found) > 0.1


def test_comparison_sees_a_wrong_rope(checkpoint, catalog):
    config = engine_config(checkpoint("llama"), "llama", overrides={"rope_parameters": {"rope_theta": 500.0}})
    assert max(comparison.error for comparison in compare(config, catalog)) > 0.1


@pytest.mark.parametrize("offer", ["llama", "qwen2", "qwen3", "mistral", "mixtral", "qwen3_moe"])
def test_unknown_keys_are_refused(offer, checkpoint, catalog):
    config = engine_config(checkpoint(offer), offer, overrides={"logit_softcap_of_the_future": 30.0})
    with pytest.raises(CheckpointError, match="logit_softcap_of_the_future"):
        declare(config, catalog)


def test_windowed_layers_get_groups_of_their_own(checkpoint, catalog):
    path = checkpoint("qwen2", use_sliding_window=True, sliding_window=9, max_window_layers=1)
    declared = declare(engine_config(path, "qwen2"), catalog)
    assert [(layer.window, layer.group, layer.place) for layer in declared.layers] == [(None, 0, 0), (9, 1, 0)]
    assert [spec.kind for spec in declared.specs] == ["full", "window"]
    assert declared.specs[0].token_bytes == 2 * 2 * 16 * 4


def test_declaring_reads_no_weights(checkpoint, catalog, tmp_path):
    (tmp_path / "config.json").write_text((checkpoint("llama") / "config.json").read_text())
    declared = declare(engine_config(tmp_path, "llama"), catalog)
    assert all(parameter.is_meta for parameter in declared.model.parameters())
    assert declared.vocab_size == 320
    assert declared.weight_bytes > 320 * 64 * 4 * 2


def test_dummy_weights_run(checkpoint, catalog, tmp_path):
    (tmp_path / "config.json").write_text((checkpoint("qwen3_moe") / "config.json").read_text())
    declared = load(engine_config(tmp_path, "qwen3_moe", load_format="dummy"), catalog)
    held = [*declared.model.parameters(), *declared.model.buffers()]
    assert declared.weight_bytes == sum(tensor.nbytes for tensor in held)
    assert all(bool(tensor.isfinite().all()) for tensor in held)


def test_a_missing_file_is_named(checkpoint, catalog, tmp_path):
    (tmp_path / "config.json").write_text((checkpoint("llama") / "config.json").read_text())
    with pytest.raises(CheckpointError, match=str(Path(tmp_path))):
        load(engine_config(tmp_path, "llama"), catalog)
