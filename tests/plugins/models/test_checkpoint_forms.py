"""Checkpoints as people have them: without a head, under bare names, saved by torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lsv.testing.model import engine_config, load


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


def offers(catalog):
    from lsv.offers import ModelOffer

    return catalog.offers(ModelOffer)
