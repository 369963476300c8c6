"""A checkpoint's own tokenizer, run in a side process, with the methods that ``Tokenizer`` calls of a fast one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers

from lsv_base.errors import BadRequest, LsvError
from lsv_base.processes.confinement.terms import Mode
from lsv_base.remote_code.messages import Decode, Describe, Description, Encode
from lsv_base.remote_code.process import CodeProcess
from lsv_base.remote_code.references import check_code

Backend = Any
"""``tokenizers.Tokenizer``, or what has its methods."""


class _Encoding(NamedTuple):
    ids: list[int]


def open_backend(folder: Path, reference: str, mode: Mode) -> tuple[Backend, dict[str, str]]:
    """A tokenizer of the class ``reference``, and its named tokens. One that has a fast form needs the process no more.

    Raises ``CheckpointError``.
    """
    process = CodeProcess(str(folder), check_code(reference, folder), mode)
    try:
        described: Description = process.ask(Describe())
    except BaseException:
        process.close()
        raise
    if not described.fast:
        return CodeBackend(process, described), described.named
    process.close()
    return tokenizers.Tokenizer.from_str(described.fast), described.named


class CodeBackend:
    """Encodes and decodes in the process; what single tokens are, it knows itself."""

    decoder = None
    """How it decodes is not known."""

    def __init__(self, process: CodeProcess, described: Description) -> None:
        self._process, self._described = process, described
        weakref.finalize(self, process.close).atexit = False  # by then the process ends with its thread
        self._ids = {piece: token for token, piece in enumerate(described.pieces) if piece}
        self._ids |= {one.content: one.id for one in described.added}

    def no_truncation(self) -> None:
        """Nothing is ever truncated."""

    def no_padding(self) -> None:
        """Nor padded."""

    def get_added_tokens_decoder(self) -> dict[int, tokenizers.AddedToken]:
        return {one.id: tokenizers.AddedToken(one.content, special=one.special) for one in self._described.added}

    def get_vocab(self) -> dict[str, int]:
        return self._ids

    def get_vocab_size(self) -> int:
        return len(self._described.pieces)

    def token_to_id(self, token: str) -> int | None:
        return self._ids.get(token)

    def id_to_token(self, token: int) -> str | None:
        return self._described.pieces[token] or None if 0 <= token < len(self._described.pieces) else None

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[_Encoding]:
        """Raises ``BadRequest`` for a text that the code fails at, or takes too long for."""
        return [_Encoding(self._ask(Encode(text, add_special_tokens)).ids) for text in texts]

    def decode_batch(self, rows: Sequence[list[int]], skip_special_tokens: bool = True) -> list[str]:
        return [self._decode([self._check(token) for token in ids], skip_special_tokens) for ids in rows]

    def _decode(self, ids: list[int], skip: bool) -> str:
        known = [token for token in ids if token < len(self._described.pieces) and self._described.pieces[token]]
        if len(known) == 1 and not skip:
            return self._described.texts[known[0]]
        return str(self._ask(Decode(known, skip)).text) if known else ""

    def _check(self, token: int) -> int:
        if token < 0:
            raise OverflowError("a token id is negative")
        return int(token)

    def _ask(self, command: Encode | Decode) -> Any:
        try:
            return self._process.ask(command)
        except LsvError as error:
            raise BadRequest(f"the text can't be tokenised: {error.message}") from None
