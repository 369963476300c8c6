"""Tiny Medusa heads, in the formats of the published ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lsv_testing.fakes.counting import NUMBERS, head_for


def medusa_tensors(hidden: int, vocabulary: int, places: int, layers: int) -> dict[str, Any]:
    """Random ones, by vLLM's names."""
    import torch

    draw, found = torch.Generator().manual_seed(7), {}
    for place in range(places):
        for layer in range(layers):
            found[f"blocks.{place}.layers.{layer}.weight"] = torch.randn(hidden, hidden, generator=draw) / 8
        found[f"lm_heads.{place}.weight"] = torch.randn(vocabulary, hidden, generator=draw)
    return found


def write_medusa(path: Path, *, hidden: int = 64, vocabulary: int = 320, places: int = 3, layers: int = 1) -> Path:
    """Write random heads for a model of so large states to the folder ``path`` and return it."""
    return write(path, medusa_tensors(hidden, vocabulary, places, layers), {"num_heads": places}, vocabulary, layers)


def write_counting_medusa(path: Path, *, vocabulary: int = 320, places: int = 3) -> Path:
    """Heads that are always right for ``counting_model``, by the state that the last token was sampled from."""
    tensors = medusa_tensors(NUMBERS, vocabulary, places, 1)
    for place in range(places):
        tensors[f"blocks.{place}.layers.0.weight"].zero_()
        tensors[f"lm_heads.{place}.weight"] = head_for(2 + place, vocabulary)
    return write(path, tensors, {"num_heads": places}, vocabulary, 1)


def write(path: Path, tensors: dict[str, Any], more: dict[str, Any], vocabulary: int, layers: int) -> Path:
    """The checkpoint of these tensors, with ``more`` keys in its config.json."""
    from safetensors.torch import save_file

    path.mkdir(parents=True)
    save_file(tensors, path / "model.safetensors")
    config = {
        "architectures": ["MedusaModel"], "model_type": "medusa", "vocab_size": vocabulary, "num_hidden_layers": layers,
        **more,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path
