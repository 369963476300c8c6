"""An adapter's files may hold anything: what can't be served is refused, and says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lsv.adapters.registry import resolve
from lsv.config import AdapterOptions
from lsv_base.errors import CheckpointError
from lsv_runtime.adapters.checkpoint import read_adapter

MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
A, B = torch.ones(4, 8), torch.ones(8, 4)


def write(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> Path:
    known = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(known | config))
    save_file({f"{MODULE}.{name}": tensor for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"lora_alpha": 10**400}, "lora_alpha must be a number"),
        ({"r": 2.5}, "r must be a whole number"),
        ({"use_rslora": 1}, "use_rslora must be true or false"),
        ({"modules_to_save": 5}, "modules_to_save must be a list of names"),
        ({"rank_pattern": {"(?i)Q_PROJ": 4}}, "is ambiguous"),
        ({"target_modules": "a{99999999999999999999}"}, "target_modules: the pattern .* repeats over 1000 times"),
        ({"target_modules": "(" * 2000 + ")" * 2000}, "target_modules does not include"),
        ({"init_lora_weights": "lora_ga"}, "changes the base model's weights"),
        ({"r": 1024}, "rank 1024, over the limit of 16: raise --max-lora-rank"),
    ],
)
def test_configurations(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {"lora_A.weight": A, "lora_B.weight": B}, config)
    with pytest.raises(CheckpointError, match=message):
        read_adapter(folder, 16)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"lora_A.weight": A, "lora_A.default.weight": A + 1, "lora_B.weight": B}, "has the lora_A of .*q_proj twice"),
        ({"lora_A.weight": A * torch.nan, "lora_B.weight": B}, "not finite"),
        (
            {"lora_A.weight": A.to(torch.int8), "lora_B.weight": B},
            r"is int8 \[4, 8\], expected a floating-point matrix",
        ),
        ({"lora_A.weight": A[0], "lora_B.weight": B}, "expected a floating-point matrix"),
        ({"lora_A.weight": A}, "has no lora_B"),
        ({"lora_A.weight": A, "lora_B.weight": B, "gate": A[0].clone()}, "q_proj.gate: unsupported tensors"),
    ],
)
def test_tensors(tensors: dict[str, torch.Tensor], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_adapter(write(tmp_path, tensors, {}), 16)


@pytest.mark.parametrize("name", ["", ".", "..", "../one", "one/", "/one", "a\0b", "x" * 300, "one\n"])
def test_names_that_lead_out_of_the_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder/one").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "folder", tmp_path / "folder/one"):
        (place / "adapter_config.json").write_text("{}")
    options = AdapterOptions(folder=str(tmp_path / "folder"))
    assert resolve(options, name) is None
    assert resolve(options, "one") == str(tmp_path / "folder/one")
