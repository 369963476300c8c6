"""Checkpoints as people have them: without a head, under bare names, saved by torch."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lsv_doctor.models.tiny import make_model, save, tiny_config
from lsv_testing.model import engine_config, load


def rewrite(source: Path, target: Path, *, bare: bool, **config) -> Path:
    """The checkpoint as torch saves it; ``bare`` is the model inside, without its head."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    if bare:
        tensors = {name.removeprefix("model."): one for name, one in tensors.items() if not name.startswith("lm_head")}
    torch.save(tensors, target / "pytorch_model.bin")
    known = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**known, **config}))
    return target


def weights(path: Path, offer: str, catalog) -> dict[str, torch.Tensor]:
    return dict(load(engine_config(path, offer), catalog).model.named_parameters())


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_bare_names_load_in_the_native_family(family, checkpoint, catalog, tmp_path):
    path, name = checkpoint(family), f"{family.capitalize()}Model"
    assert any(offer.name == family and name in offer.architectures for offer in offers(catalog))
    bare = rewrite(path, tmp_path / family, bare=True, architectures=[name], tie_word_embeddings=False)
    expected, found = weights(path, family, catalog), weights(bare, family, catalog)
    for name, weight in found.items():
        if not name.startswith("head"):
            assert torch.equal(weight, expected[name]), name


@pytest.mark.row("F-234", "F-692")
def test_weights_that_torch_has_saved(checkpoint, catalog, tmp_path):
    path = checkpoint("llama")
    saved = rewrite(path, tmp_path / "llama", bare=False)
    expected, found = weights(path, "llama", catalog), weights(saved, "llama", catalog)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_layers_that_are_stored_as_pairs_of_blocks_are_found(catalog, tmp_path):
    """Dory's released checkpoints: attention is block 2 i, the MLP is block 2 i + 1."""
    path = save(make_model(transformers.DoryForCausalLM, tiny_config("dory")), tmp_path / "dory")
    shutil.copytree(path, tmp_path / "released")
    tensors = load_file(path / "model.safetensors")
    save_file({to_released(name): one for name, one in tensors.items()}, tmp_path / "released/model.safetensors")
    expected, found = weights(path, "transformers", catalog), weights(tmp_path / "released", "transformers", catalog)
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def to_released(name: str) -> str:
    def rename(match: re.Match[str]) -> str:
        layer, part = int(match[1]), match[2]
        other = {"lambda_1": "attn_alpha", "lambda_2": "mlp_alpha"}.get(part, "mixer")
        return f"layers.{2 * layer + (part in ('mlp', 'lambda_2'))}.{other}"

    name = re.sub(r"layers\.(\d+)\.(self_attn|mlp|lambda_[12])", rename, name.replace("self_attn.gate", "self_attn.g"))
    return name.replace("embed_tokens", "embeddings").replace("model.", "backbone.")


def offers(catalog):
    from lsv.offers import ModelOffer

    return catalog.offers(ModelOffer)
