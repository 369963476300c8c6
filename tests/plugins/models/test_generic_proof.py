"""The transformers adapter proves itself on a small copy of an architecture before it counts."""

import json
from typing import Any

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config

LARGE: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 12, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_proved(monkeypatch):
    from lsv_models.generic import proof

    monkeypatch.setattr(proof, "_proved", {})


def declare_folder(config, folder, catalog):
    (folder / "config.json").write_text(json.dumps(config))
    return declare(engine_config(folder, "transformers"), catalog)


@pytest.mark.parametrize(
    ("family", "architecture", "fault"),
    [("bart", "BartForCausalLM", "_places_tokens"), ("roberta", "RobertaForCausalLM", "_position_offset")],
)
def test_wrong_positions_are_found(family, architecture, fault, tmp_path, catalog, monkeypatch):
    from lsv_models.generic import body

    monkeypatch.setattr(body, fault, lambda module: 0)
    config = {"model_type": family, "architectures": [architecture], "is_decoder": True, "is_encoder_decoder": False}
    with pytest.raises(CheckpointError, match=f"{architecture}.*in pieces"):
        declare_folder(config, tmp_path, catalog)


def test_state_that_is_not_kept_is_found(tmp_path, catalog, monkeypatch):
    """A convolution over time sees only the step's tokens; let nobody know it by the kind of its layers."""
    monkeypatch.setattr("lsv_models.generic.building._LAYER_TYPES", {"full_attention", "conv"})
    config = {"model_type": "lfm2", "num_hidden_layers": 16, "layer_types": ["conv", "full_attention"] * 8}
    with pytest.raises(CheckpointError, match=r"Lfm2ForCausalLM.*in pieces"):
        declare_folder({**config, "architectures": ["Lfm2ForCausalLM"]}, tmp_path, catalog)


def test_layers_of_chunks_run_up_to_one_of_them():
    from lsv_models.generic.building import parse
    from lsv_models.generic.refusal import Refused

    parse({"model_type": "llama4_text"}, 8192)
    with pytest.raises(Refused, match=r"up to 8192 tokens.*--max-model-len"):
        parse({"model_type": "llama4_text"}, 8193)


@pytest.mark.parametrize("longest", [8, 9])
def test_queries_choose_tokens_from_where_on_there_are_more_than_they_choose(longest, tmp_path, catalog):
    config = {"model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"], "index_topk": 8}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2, "first_k_dense_replace": 2}))
    declared = declare(engine_config(tmp_path, "transformers", max_len=longest), catalog)
    kept = [(layer.kv_heads, layer.gathered) for layer in declared.layers]
    assert kept == ([(128, False)] * 2 if longest == 8 else [(1, True), (128, True)] * 2)


def test_large_configurations_are_tried_small_and_once(tmp_path, catalog, monkeypatch):
    from lsv_models.generic import proof

    sizes = []
    make = proof._make_reference

    def count(small, spread):
        model = make(small, spread)
        sizes.append(sum(each.numel() for each in model.parameters()))
        return model

    monkeypatch.setattr(proof, "_make_reference", count)
    for _ in range(2):
        declared = declare_folder(LARGE, tmp_path, catalog)
    assert len(sizes) == 1
    assert sizes[0] < 1_000_000
    assert len(declared.layers) == 12
    assert declared.layers[0].head_dim == 128


def test_small_copies_leave_random_numbers_alone(tmp_path, catalog):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    declare_folder(LARGE, tmp_path, catalog)
    assert torch.equal(torch.rand(4), expected)


def test_small_copies_keep_what_is_no_size():
    from lsv_models.generic.miniature import shrink

    config = {
        "hidden_size": 4096, "num_hidden_layers": 48, "sliding_window": 1024, "hidden_act": "gelu", "norm_eps": 1e-5,
        "num_attention_heads": 32, "num_key_value_heads": 1, "num_experts": 128, "num_experts_per_tok": 8,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 8, "eos_token_id": 100_257,
        "tie_word_embeddings": False, "quantization_config": {"quant_method": "fp8"},
        "rope_parameters": {"rope_type": "llama3", "original_max_position_embeddings": 8192, "factor": 8.0},
    }  # fmt: skip
    assert shrink(config) == {
        "hidden_size": 64, "num_hidden_layers": 6, "sliding_window": 8, "hidden_act": "gelu", "norm_eps": 1e-5,
        "num_attention_heads": 4, "num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"], "eos_token_id": 100_257 % 384,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "llama3", "original_max_position_embeddings": 16, "factor": 8.0},
    }  # fmt: skip


def test_small_copies_have_small_parts_that_name_no_model():
    """As DBRX publishes them: ``attn_config`` has a ``model_type``, and it is empty."""
    from lsv_models.generic.miniature import shrink

    attention = {"model_type": "", "kv_n_heads": 8, "clip_qkv": 8.0}
    assert shrink({"n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": attention})["attn_config"] == {
        "model_type": "", "kv_n_heads": 2, "clip_qkv": 8.0,
    }  # fmt: skip


def test_small_copies_have_layers_of_every_kind():
    from lsv_models.generic.miniature import shrink

    assert shrink({"num_hidden_layers": 32, "full_attention_interval": 4})["num_hidden_layers"] == 5
    assert shrink({"n_layer": 32, "kinds": ["a"] * 3 + ["b"] * 29})["kinds"] == ["a", "a", "a", "b"]


@pytest.mark.parametrize(("plain", "rotated"), [(128, 64), (12, 10), (8, 16), (192, 4)])
def test_small_head_is_the_sum_of_its_small_parts(plain, rotated):
    from lsv_models.generic.miniature import shrink

    whole = plain + rotated
    small = shrink(
        {"qk_nope_head_dim": plain, "qk_rope_head_dim": rotated, "qk_head_dim": whole, "head_dim": whole, "n_layer": 2}
    )
    expected = small["qk_nope_head_dim"] + small["qk_rope_head_dim"]
    assert small["qk_head_dim"] == small["head_dim"] == expected <= 24


def test_small_copies_keep_sections_of_layers_that_fill_the_model():
    from lsv_models.generic.miniature import shrink

    sections = {"n_input_layers": 16, "n_recurrent_layers": 40, "n_output_layers": 16}
    kinds = (["sliding_attention", "mlp"] * 3 + ["full_attention", "mlp"]) * 9
    small = shrink({"num_hidden_layers": 72, "layer_types": kinds, "initializer_range": 0.0177, **sections})
    assert small == {
        "num_hidden_layers": 8, "layer_types": kinds[:8], "initializer_range": 1.0,
        "n_input_layers": 2, "n_recurrent_layers": 4, "n_output_layers": 2,
    }  # fmt: skip


def test_a_layer_that_runs_twice_has_two_places_in_the_cache(tmp_path, catalog):
    sections = {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1, "n_recurrent_loops": 3}
    config = {"model_type": "dory", "architectures": ["DoryForCausalLM"], "num_hidden_layers": 4, **sections}
    assert len(declare_folder(config, tmp_path, catalog).layers) == 1 + 3 * 2 + 1


def test_numbers_that_json_lacks_are_decoded():
    from lsv_models.generic.building import decode

    assert decode({"limit": [0.0, {"__float__": "Infinity"}], "other": {"a": 1}}) == {
        "limit": [0.0, float("inf")],
        "other": {"a": 1},
    }
