"""config.json contradicts the files: lsv follows transformers, and logs it."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv_testing.model import check_model, compare, engine_config, load, reference_model

TOLERANCE = 1e-4
HEADS = {
    "llama": ("llama", "lm_head.weight", "model.embed_tokens.weight"),
    "gemma2": ("gemma2", "lm_head.weight", "model.embed_tokens.weight"),
    "gpt_neox": ("gpt_neox", "embed_out.weight", "gpt_neox.embed_in.weight"),
    "mamba": ("mamba", "lm_head.weight", "backbone.embeddings.weight"),
    "glm": ("transformers", "lm_head.weight", "model.embed_tokens.weight"),
}
"""By family: its offer, and the names of head and embedding in its files."""
SHAPES = {"mamba": {"state_size": 8, "time_step_rank": 6}}


def copy(source: Path, folder: Path, **keys: Any) -> Path:
    """A copy of a checkpoint with other keys in config.json."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **keys}))
    return folder


def tied(untied: Path, folder: Path) -> Path:
    """A copy of a checkpoint with a separate head that config.json ties."""
    return copy(untied, folder, tie_word_embeddings=True)


def rewrite(folder: Path, changes) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    changes(tensors)
    save_file(tensors, file, {"format": "pt"})


@pytest.mark.parametrize("family", HEADS)
def test_a_head_that_differs_is_not_tied(family, checkpoint, catalog, tmp_path, caplog):
    offer, head, _ = HEADS[family]
    folder = tied(checkpoint(family, tie_word_embeddings=False, **SHAPES.get(family, {})), tmp_path / "checkpoint")
    assert head in load_file(folder / "model.safetensors")
    caplog.set_level(logging.WARNING)
    check_model(engine_config(folder, offer), catalog, tolerance=TOLERANCE)
    assert f"{head} differs" in caplog.text


@pytest.mark.parametrize("family", HEADS)
def test_a_head_that_equals_the_embedding_is_tied(family, checkpoint, catalog, tmp_path, caplog):
    offer, head, embedding = HEADS[family]
    folder = tied(checkpoint(family, tie_word_embeddings=False, **SHAPES.get(family, {})), tmp_path / "checkpoint")
    rewrite(folder, lambda tensors: tensors.update({head: tensors[embedding].clone()}))
    config = engine_config(folder, offer)
    check_model(config, catalog, tolerance=TOLERANCE)
    assert not [record for record in caplog.records if "tied" in record.message]
    assert load(config, catalog).ties


@pytest.mark.parametrize("family", HEADS)
def test_a_head_alone_is_the_embedding_as_well(family, checkpoint, catalog, tmp_path):
    offer, head, embedding = HEADS[family]
    folder = tied(checkpoint(family, tie_word_embeddings=False, **SHAPES.get(family, {})), tmp_path / "checkpoint")
    rewrite(folder, lambda tensors: tensors.pop(embedding))
    assert head in load_file(folder / "model.safetensors")
    check_model(engine_config(folder, offer), catalog, tolerance=TOLERANCE)


def test_comparison_sees_a_tied_head(checkpoint, catalog, tmp_path):
    own = checkpoint("llama", tie_word_embeddings=False)
    folder = tied(own, tmp_path / "checkpoint")
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    reference = engine_config(own, "llama")
    found = compare(engine_config(folder, "llama"), catalog, reference=reference_model(reference))
    assert max(comparison.error for comparison in found) > 0.1


def test_one_file_goes_before_an_index(checkpoint, catalog, tmp_path, caplog):
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint("llama"), folder)
    tensors = load_file(folder / "model.safetensors")
    stale = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    save_file(stale, folder / "model-00001-of-00001.safetensors", {"format": "pt"})
    index = {"weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    check_model(engine_config(folder, "llama"), catalog, tolerance=TOLERANCE)
    assert "model.safetensors.index.json is not read" in caplog.text


WINDOW, PARTIAL, FIXED = {"sliding_window": 9}, {"partial_rotary_factor": 0.5}, {"rope_theta": 50.0}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16}
FOREIGN = [
    ("llama", WINDOW), ("llama", PARTIAL), ("llama", {**WINDOW, "layer_types": ["sliding_attention"] * 2}),
    ("gemma", WINDOW), ("gemma", PARTIAL), ("glm", WINDOW), ("granite", WINDOW), ("olmo2", WINDOW),
    ("seed_oss", WINDOW), ("ernie4_5", WINDOW), ("bamba", WINDOW), ("qwen2", PARTIAL), ("qwen3_moe", PARTIAL),
    ("mistral", PARTIAL), ("mixtral", PARTIAL), ("smollm3", PARTIAL), ("falcon", PARTIAL), ("starcoder2", PARTIAL),
    ("cohere", PARTIAL),
    ("gptj", FIXED), ("codegen", FIXED),
]  # fmt: skip
"""Families with keys that only other families have."""


@pytest.mark.parametrize(("family", "keys"), FOREIGN, ids=[f"{family}-{'-'.join(keys)}" for family, keys in FOREIGN])
def test_keys_of_other_families_change_nothing(family, keys, checkpoint, catalog, tmp_path):
    shape = {**MAMBA, "num_hidden_layers": 3, "attn_layer_indices": [1]} if family == "bamba" else {}
    folder = copy(checkpoint(family, **shape), tmp_path / "checkpoint", **keys)
    check_model(engine_config(folder, family), catalog, tolerance=TOLERANCE)


def test_families_that_have_a_key_read_it(checkpoint, catalog):
    part = {"rope_parameters": PARTIAL}
    for family, keys in (("mistral", WINDOW), ("phi3", WINDOW), ("phi3", part)):
        found = compare(engine_config(checkpoint(family, sliding_window=None), family, overrides=keys), catalog)
        assert max(comparison.error for comparison in found) > 0.1
