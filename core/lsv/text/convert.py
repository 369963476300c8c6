"""Slow tokenizers become fast ones in a process of their own, because only that one needs transformers.

``python -m lsv.text.convert FOLDER TARGET`` writes ``TARGET/tokenizer.json``.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from lsv.settings.caching import cache_root
from lsv_base.errors import CheckpointError
from lsv_base.processes.lifeline import end_without_search
from lsv_base.untrusted.files import read_regular

_SECONDS = 300.0


def convert_in_side_process(folder: Path) -> Path:
    """The converted tokenizer.json of a folder, from the user's cache when it was made before.

    Raises ``CheckpointError`` with the reason when it can't be converted.
    """
    cache = cache_root() / "lsv" / "tokenizers"
    target = cache / _fingerprint(folder)
    file = target / "tokenizer.json"
    if file.is_file():
        return file
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as fresh:
        _run(folder, fresh)
        target.mkdir(exist_ok=True)
        (Path(fresh) / "tokenizer.json").replace(file)
    return file


def _run(folder: Path, target: str) -> None:
    command = [sys.executable, "-m", "lsv.text.convert", str(folder), target]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"converting the tokenizer of {folder} took more than {_SECONDS:g} s") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CheckpointError(
            f"{folder} has no tokenizer.json and its slow tokenizer could not be converted: {reason}", param="tokenizer"
        )


def _fingerprint(folder: Path) -> str:
    """Changes with any file a tokenizer may consist of."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix in (".model", ".json", ".txt") and not file.name.startswith("model"):
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(read_regular(file)).digest())
    return digest.hexdigest()[:32]


def convert(folder: str, target: str) -> None:
    """Write the fast form of a folder's tokenizer into ``target``; needs transformers."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, local_files_only=True)
    tokenizer.backend_tokenizer.save(str(Path(target) / "tokenizer.json"))


if __name__ == "__main__":
    end_without_search()
    convert(sys.argv[1], sys.argv[2])
