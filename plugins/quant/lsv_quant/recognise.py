"""Which checkpoint format a local path is in. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lsv_base.untrusted.files import read_text

POINTER = "gguf.json"
PROJECTORS = "*mmproj*.gguf"
"""How llama.cpp names the file of a model's tower, which lies beside that of its language model."""
"""In a model folder made from a GGUF file: says where the file is."""


SPARSE = ("sparse-24-bitmask", "sparse-bitmask")
"""Forms of compressed-tensors that store some weights and a bit for each."""
MARLIN = ("marlin", "marlin_24", "marlin-24")
"""What GPTQ, with 2:4 sparsity, and compressed-tensors call codes in the layout of Marlin's kernels."""


def is_bitsandbytes(path: str) -> bool:
    """A folder whose config.json says so."""
    return _quantization(path).get("quant_method") == "bitsandbytes"


def is_sparse(path: str) -> bool:
    """A folder whose config.json names one of the ``SPARSE`` forms."""
    found = _quantization(path).get("sparsity_config")
    return isinstance(found, dict) and found.get("format") in SPARSE


def is_marlin(path: str) -> bool:
    """A folder whose codes lie as Marlin's kernels read them."""
    found = _quantization(path) or _read(path, "quantize_config.json")
    forms = (found.get("checkpoint_format"), found.get("format"))
    return found.get("is_marlin_format") is True or any(form in MARLIN for form in forms)


def _quantization(path: str) -> dict[str, Any]:
    """What a folder's config.json says of its weights, empty where it says nothing."""
    found = _read(path, "config.json").get("quantization_config")
    return found if isinstance(found, dict) else {}


def _read(path: str, name: str) -> dict[str, Any]:
    """A JSON object in a folder, empty where there is none."""
    try:
        found = json.loads(read_text(Path(path) / name))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def gguf_files(folder: Path) -> list[Path]:
    """The files of models: those of towers for media (``PROJECTORS``) are left out."""
    return sorted(file for file in folder.glob("*.gguf") if file.is_file() and not file.match(PROJECTORS))


def is_gguf(path: str) -> bool:
    """A GGUF file, a folder with such files and no safetensors, or a folder made from one."""
    place = Path(path)
    if place.is_file():
        return place.suffix == ".gguf"
    return (place / POINTER).is_file() or (bool(gguf_files(place)) and not any(place.glob("*.safetensors")))
