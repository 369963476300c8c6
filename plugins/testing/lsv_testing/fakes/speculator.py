"""Tiny MLP speculators with random weights, in the format of the published ones."""

from __future__ import annotations

import json
from pathlib import Path


def write_speculator(
    path: Path, *, hidden: int = 64, vocabulary: int = 320, places: int = 3, tied: bool = False, scales: bool = True
) -> Path:
    """Write one for a model of so large states to the folder ``path`` and return it."""
    import torch
    from safetensors.torch import save_file

    inner, draw = 24, torch.Generator().manual_seed(7)
    shapes: dict[str, tuple[int, ...]] = {}
    for place in range(places):
        shapes[f"emb.{place}.weight"] = shapes[f"head.{place}.weight"] = (vocabulary, inner)
        shapes[f"proj.{place}.weight"] = (inner, inner if place else hidden)
        shapes[f"ln.{place}.weight"] = shapes[f"ln.{place}.bias"] = (inner,)
    if tied:
        last = {"proj": 1}
        shapes = {name: shape for name, shape in shapes.items() if int(name.split(".")[1]) <= last.get(name[:4], 0)}
    path.mkdir(parents=True)
    save_file(
        {f"speculator.{name}": torch.randn(shape, generator=draw) for name, shape in shapes.items()},
        path / "model.safetensors",
    )
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "emb_dim": hidden,
        "inner_dim": inner, "n_predict": places, "vocab_size": vocabulary, "tie_weights": tied, "scale_input": scales,
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path
