"""Which files of a checkpoint's folder its tokenizer is read from."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from lsv.text.code_backend import Backend, open_backend
from lsv.text.vocabularies.sentencepiece import find_model, read_tokenizer
from lsv.text.vocabularies.tekken import FILE as TEKKEN
from lsv.text.vocabularies.tekken import NAMED, read_tekken
from lsv.text.vocabularies.tiktoken import read_tiktoken
from lsv_base.errors import CheckpointError, LsvError
from lsv_base.processes.confinement.terms import Mode
from lsv_base.remote_code.references import find_code
from lsv_base.untrusted.files import check_regular, read_text

log = logging.getLogger(__name__)

_FAST = "tokenizer.json"
_SLOW_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")


class Found(NamedTuple):
    """A folder's tokenizer, and what only it knows."""

    backend: Backend
    """What encodes and decodes."""
    named: Mapping[str, str] = {}
    """Its special tokens, such as ``bos_token``."""
    template: str = ""
    """The name of a chat template of lsv's, for a folder that has none."""
    extensible: bool = False
    """Whether it is the folder's tokenizer.json, to which other files may add tokens."""


def find_backend(place: Path, settings: Mapping[str, Any], trust: Mode | None) -> Found:
    """The tokenizer of a folder, or of a tekken.json, which a folder's is where there is no tokenizer.json.

    ``settings`` are those of tokenizer_config.json; ``trust`` says how a tokenizer's own code is confined, None runs
    none. Where that fails, the files are read without it if that is possible. Raises ``CheckpointError``, and
    ``RequestFailed`` where the code costs its process its life.
    """
    if place.is_file():
        return _from_tekken(place)
    folder, file = place, place / _FAST
    if not file.is_file():
        code = find_code(settings, "AutoTokenizer")
        runs = code is not None and trust is not None
        try:
            read = _read_known(folder, settings)
        except CheckpointError:
            if not runs:
                raise
            read = None
        if read is not None:  # the same with and without trust, and no foreign code runs
            return read
        if code is None or trust is None:
            file = _convert(folder, code)
        else:
            try:
                return Found(*open_backend(folder, code, trust))
            except LsvError as failure:
                file = _convert_instead(folder, code, failure)
    try:
        return Found(tokenizers.Tokenizer.from_file(str(check_regular(file))), extensible=file.parent == folder)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as cause:  # tokenizers raises bare Exception, and a panic of Rust code is not even that
        raise CheckpointError(f"{file} can't be read as a tokenizer: {cause}", param="tokenizer") from cause


def _read_known(folder: Path, settings: Mapping[str, Any]) -> Found | None:
    """A tokenizer in a form that lsv reads itself; None for a folder without one. Raises ``CheckpointError``."""
    known = read_tiktoken(folder, settings)
    if known is not None:
        return Found(known)
    if (folder / TEKKEN).is_file():
        return _from_tekken(folder / TEKKEN)
    model = find_model(folder)
    read = None if model is None else read_tokenizer(model, settings, read_json(folder / "added_tokens.json"))
    return None if read is None else Found(read)


def _from_tekken(file: Path) -> Found:
    backend, template = read_tekken(file)
    return Found(backend, NAMED, template)


def _convert(folder: Path, code: str | None) -> Path:
    """The fast form of a slow tokenizer. Raises ``CheckpointError``, also for one that is ``code``."""
    from lsv.text.convert import convert_in_side_process

    try:
        if any((folder / name).is_file() for name in _SLOW_FILES):
            return convert_in_side_process(folder)
    except CheckpointError:
        if code is None:
            raise
    if code is not None:
        raise CheckpointError(
            f"the tokenizer of {folder} is code of its own, {code}: --trust-remote-code runs it in a confined process; "
            "or name a folder with a tokenizer.json with --tokenizer",
            param="tokenizer",
        )
    raise CheckpointError(
        f"{folder} has no tokenizer.json; name a folder that has one with --tokenizer", param="tokenizer"
    )


def _convert_instead(folder: Path, code: str, failure: LsvError) -> Path:
    """The fast form of a tokenizer whose ``code`` has failed. Raises ``failure`` where the files alone give none."""
    try:
        file = _convert(folder, None)
    except CheckpointError:
        raise failure from None
    log.warning("%s: lsv reads the files of the tokenizer without its code %s: %s", folder, code, failure.message)
    return file


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no such file."""
    try:
        content = json.loads(read_text(file))
    except FileNotFoundError:
        return {}
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise CheckpointError(f"{file} is not valid JSON: {cause}", param="tokenizer") from cause
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} must hold a JSON object", param="tokenizer")
    return content
