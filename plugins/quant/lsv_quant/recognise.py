"""Which checkpoint format a local path is in. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

POINTER = "gguf.json"
"""In a model folder made from a GGUF file: says where the file is."""


SPARSE = ("sparse-24-bitmask", "sparse-bitmask")
"""Forms of compressed-tensors that store some weights and a bit for each."""


def is_bitsandbytes(path: str) -> bool:
    """A folder whose config.json says so."""
    return _quantization(path).get("quant_method") == "bitsandbytes"


def is_sparse(path: str) -> bool:
    """A folder whose config.json names one of the ``SPARSE`` forms."""
    found = _quantization(path).get("sparsity_config")
    return isinstance(found, dict) and found.get("format") in SPARSE


def _quantization(path: str) -> dict[str, Any]:
    """What a folder's config.json says of its weights, empty where it says nothing."""
    try:
        found = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def gguf_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.gguf") if file.is_file())


def is_gguf(path: str) -> bool:
    """A GGUF file, a folder with such files and no safetensors, or a folder made from one."""
    place = Path(path)
    if place.is_file():
        return place.suffix == ".gguf"
    return (place / POINTER).is_file() or (bool(gguf_files(place)) and not any(place.glob("*.safetensors")))
