"""Vocabularies in tiktoken's form, of tokenizers that are code of a checkpoint's own and known here, read without that.

``tokenizer.model`` has a byte sequence in base64 and its rank a line; the pattern that texts are split by, and what
they begin with, are in the code. Source: tokenization_chatglm.py of GLM-4.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

from lsv.text.vocabularies.ranked import make_tokenizer
from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import read_text


class _Known(NamedTuple):
    pattern: str
    begin: tuple[str, ...]


_CLASSES: Mapping[str, _Known] = {
    "ChatGLM4Tokenizer": _Known(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        ("[gMASK]", "<sop>"),
    ),
}
"""By ``tokenizer_class`` of tokenizer_config.json."""


def read_tiktoken(folder: Path, settings: Mapping[str, Any]) -> Tokenizer | None:
    """The fast tokenizer of a folder; None for one of another class. ``settings`` are those of tokenizer_config.json.

    Raises ``CheckpointError`` for files that are damaged.
    """
    known, file = _CLASSES.get(str(settings.get("tokenizer_class"))), folder / "tokenizer.model"
    if known is None or not file.is_file():
        return None
    try:
        added = dict(_read_added(settings))
        if missing := {*known.begin} - {token.content for token in added.values()}:
            raise ValueError(f"tokenizer_config.json has no {', '.join(sorted(missing))}")
        return make_tokenizer(list(_read_lines(file)), 0, added, known.pattern, known.begin)
    except Exception as cause:  # tokenizers raises bare Exception
        raise CheckpointError(f"{file} can't be made a tokenizer: {cause}", param="tokenizer") from cause


def _read_lines(file: Path) -> Iterator[bytes]:
    for rank, line in enumerate(read_text(file, "ascii").splitlines()):
        sequence, _, number = line.strip().partition(" ")
        if number != str(rank):
            raise ValueError(f"line {rank + 1} must have a sequence and the rank {rank}")
        yield base64.b64decode(sequence, validate=True)


def _read_added(settings: Mapping[str, Any]) -> Iterator[tuple[int, AddedToken]]:
    """The tokens that stand for themselves, by id."""
    for number, token in dict(settings.get("added_tokens_decoder") or {}).items():
        flags = {name: bool(token.get(name)) for name in ("lstrip", "rstrip", "single_word", "special")}
        yield int(number), AddedToken(str(token["content"]), normalized=False, **flags)
