"""Random adapters for a checkpoint, as PEFT writes them, and the checkpoint with one merged into its weights."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_NOTHING = torch.empty(0)


def linear_layers(checkpoint: Path, but: Sequence[str] = ()) -> Iterator[str]:
    """The modules of a checkpoint's layers that have a matrix, without those whose names hold one of ``but``."""
    for name, tensor in _tensors(checkpoint).items():
        module = name.removesuffix(".weight")
        numbered = any(part.isdigit() for part in module.split("."))
        if name.endswith(".weight") and tensor.ndim == 2 and numbered and not any(one in module for one in but):
            yield module


def write_adapter(
    path: Path,
    checkpoint: Path,
    modules: Sequence[str],
    *,
    seed: int = 0,
    rank: int = 4,
    alpha: float = 8.0,
    spread: float = 0.2,
    transposed: bool = False,
    dora: bool = False,
    embeddings: Sequence[str] = (),
    copies: Sequence[str] = (),
    ranks: Mapping[str, int] = {},
    **config: Any,
) -> Path:
    """Write an adapter for ``modules`` to the folder ``path`` and return it. ``ranks`` are those of single modules.

    ``transposed`` says that the checkpoint stores [inputs, outputs], as GPT-2's does; ``dora`` adds magnitudes, between
    half and one and a half times the lengths of the weights' rows; ``embeddings`` are modules that embed,
    and ``copies`` those that the adapter has whole weights of; ``config`` is laid over adapter_config.json.
    """
    from safetensors.torch import save_file

    generator, stored = torch.Generator().manual_seed(seed), _tensors(checkpoint)
    tensors: dict[str, torch.Tensor] = {}
    for module in modules:
        outputs, inputs = stored.get(f"{module}.weight", stored.get(_EMBEDDING, _NOTHING)).shape[
            :: -1 if transposed else 1
        ]
        own = ranks.get(module, rank)
        for side, shape in (("A", (own, inputs)), ("B", (outputs, own))):
            name = f"base_model.model.{module}.lora_{side}.weight"
            tensors[name] = spread * torch.randn(shape, generator=generator)
        if dora:
            lengths = stored[f"{module}.weight"].float().norm(dim=0 if transposed else 1)
            factors = 0.5 + torch.rand(outputs, generator=generator)
            tensors[f"base_model.model.{module}.lora_magnitude_vector"] = lengths * factors
    for module in embeddings:
        vocabulary, size = stored[f"{module}.weight"].shape
        for side, shape in (("A", (rank, vocabulary)), ("B", (size, rank))):
            name = f"base_model.model.{module}.lora_embedding_{side}"
            tensors[name] = spread * torch.randn(shape, generator=generator)
    for module in copies:
        like = stored.get(f"{module}.weight", stored.get(_EMBEDDING, _NOTHING))  # a head may be tied
        tensors[f"base_model.model.{module}.weight"] = like + spread * torch.randn(like.shape, generator=generator)
    path.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path / "adapter_model.safetensors")
    given = {
        "peft_type": "LORA", "r": rank, "lora_alpha": alpha, "bias": "none", "rank_pattern": dict(ranks),
        "target_modules": sorted({module.rpartition(".")[2] for module in (*modules, *embeddings)}),
        "fan_in_fan_out": transposed,
        "use_dora": dora, "modules_to_save": list(copies) or None,
    }  # fmt: skip
    (path / "adapter_config.json").write_text(json.dumps({**given, **config}))
    return path


def merge(path: Path, checkpoint: Path, adapter: Path) -> Path:
    """Write the checkpoint with the adapter merged into its weights to the folder ``path`` and return it.

    A head that is tied has a weight of its own in it if the adapter changes it or the embedding.
    """
    from safetensors.torch import load_file, save_file

    config = json.loads((adapter / "adapter_config.json").read_bytes())
    added = load_file(adapter / "adapter_model.safetensors")
    stored = _tensors(checkpoint)
    parted = any("lm_head" in name or "embed" in name for name in added) and _HEAD not in stored
    if parted:
        stored[_HEAD] = stored[_EMBEDDING]
    for name, a in added.items():
        own = name.removeprefix("base_model.model.")
        if ".lora_" not in name:
            stored[own] = a
        if name.endswith(".lora_embedding_A"):
            place = own.replace("lora_embedding_A", "weight")
            b = added[name.replace("embedding_A", "embedding_B")]
            stored[place] = stored[place] + config["lora_alpha"] / len(a) * (b @ a).T
        if name.endswith(".lora_A.weight"):
            module, b = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight"), added[_other(name)]
            scale = config["lora_alpha"] / (math.sqrt(len(a)) if config.get("use_rslora") else len(a))
            across, weight = config["fan_in_fan_out"], stored[f"{module}.weight"]
            whole = (weight.T if across else weight) + scale * b @ a
            magnitude = added.get(f"base_model.model.{module}.lora_magnitude_vector")
            if magnitude is not None:
                whole = whole * (magnitude / whole.norm(dim=1))[:, None]
            stored[f"{module}.weight"] = whole.T if across else whole
    shutil.copytree(checkpoint, path)
    for file in path.glob("*.safetensors"):
        file.unlink()
    if parted:
        base = json.loads((path / "config.json").read_bytes())
        (path / "config.json").write_text(json.dumps({**base, "tie_word_embeddings": False}))
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, path / "model.safetensors")
    return path


def _other(name: str) -> str:
    return name.replace(".lora_A.", ".lora_B.")


def _tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for file in checkpoint.glob("*.safetensors") for name, tensor in load_file(file).items()}
