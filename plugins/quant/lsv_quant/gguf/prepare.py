"""A GGUF file as a model folder without weights: config, tokenizer, a pointer to the file. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsv.settings.caching import cache_root
from lsv_base.errors import CheckpointError
from lsv_quant.gguf.config import read_config, read_generation, read_sampling
from lsv_quant.gguf.file import read_gguf, split_files
from lsv_quant.gguf.tokenizer import write_tokenizer
from lsv_quant.recognise import POINTER, gguf_files

_VERSION = 5
"""The version of what is written; folders of another version are made anew."""


def prepare(path: str) -> str:
    """The model folder, in the cache, for a file, for a folder that holds one model's files, or for a folder made
    earlier.

    Raises ``CheckpointError`` for a file that can't be read, and for a folder with several models.
    """
    if (Path(path) / POINTER).is_file():
        return path
    file = _only_file(Path(path)).resolve()
    cache = cache_root() / "lsv" / "gguf"
    target = cache / _fingerprint(file)
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=cache))
        try:
            _write(file, fresh)
            _move(fresh, target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return str(target)


def _only_file(path: Path) -> Path:
    if path.is_file():
        return path
    models = {split_files(file)[0] for file in gguf_files(path)}
    if len(models) > 1:
        names = ", ".join(sorted(file.name for file in models))
        raise CheckpointError(f"{path} has several models, name one of them: {names}", param="model")
    return models.pop()


def _fingerprint(file: Path) -> str:
    """A name that changes with the files, their place and the version."""
    parts = [(str(part), part.stat().st_size, part.stat().st_mtime_ns) for part in split_files(file)]
    return hashlib.sha256(repr((_VERSION, parts)).encode()).hexdigest()[:32]


def _move(fresh: Path, target: Path) -> None:
    """Write all files at once, unless another process was faster."""
    try:
        fresh.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def _write(file: Path, folder: Path) -> None:
    found = read_gguf(file)
    _write_json(folder / "config.json", read_config(found))
    _write_json(folder / "generation_config.json", {**read_generation(found.metadata), **read_sampling(found.metadata)})
    write_tokenizer(found.metadata, folder)
    _write_json(folder / POINTER, {"file": str(file)})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
