"""Which checkpoint format a local path is in. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path

POINTER = "gguf.json"
"""In a model folder made from a GGUF file: says where the file is."""


def is_bitsandbytes(path: str) -> bool:
    """A folder whose config.json says so."""
    try:
        config = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
        return bool(config["quantization_config"]["quant_method"] == "bitsandbytes")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def gguf_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.gguf") if file.is_file())


def is_gguf(path: str) -> bool:
    """A GGUF file, a folder with such files and no safetensors, or a folder made from one."""
    place = Path(path)
    if place.is_file():
        return place.suffix == ".gguf"
    return (place / POINTER).is_file() or (bool(gguf_files(place)) and not any(place.glob("*.safetensors")))
