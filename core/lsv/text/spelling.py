"""What a vocabulary's pieces stand for, as far as its decoder is one of the usual ones.

Read from the decoder's description in tokenizer.json; of other decoders nothing is known.
"""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

import tokenizers

_METASPACE = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling(Protocol):
    """How single pieces become text. Tokens' texts follow one upon the other, but for those that are parts of a run."""

    trims_first: bool
    """Whether the first piece of a text may lose its spaces."""

    def spell(self, piece: str) -> bytes:
        """The bytes a piece stands for amid others: UTF-8, or a part of a character."""
        ...

    def is_part(self, piece: str) -> bool:
        """Whether its neighbours have a say in the text of a piece whatever its bytes are."""
        ...


class ByteLevel:
    """As of GPT-2: each character of a piece stands for a byte."""

    trims_first = False

    def __init__(self) -> None:
        printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
        spare = iter(range(0x100, 0x200))
        self._bytes = {chr(byte if byte in printable else next(spare)): byte for byte in range(256)}
        self._characters = {byte: character for character, byte in self._bytes.items()}

    def write(self, content: bytes) -> str:
        """The piece that stands for these bytes."""
        return "".join(map(self._characters.__getitem__, content))

    def spell(self, piece: str) -> bytes:
        try:
            return bytes(map(self._bytes.__getitem__, piece))
        except KeyError:  # an added token, which the decoder leaves as it is
            return piece.encode()

    def is_part(self, piece: str) -> bool:
        return False


class SentencePiece:
    """``mark`` stands for a space; with ``fallback``, ``<0xE2>`` and its like for bytes, decoded run by run."""

    trims_first = True

    def __init__(self, mark: str = _METASPACE, *, fallback: bool = False) -> None:
        self._mark = mark
        self._fallback = fallback

    def spell(self, piece: str) -> bytes:
        byte = _BYTE.fullmatch(piece) if self._fallback else None
        return bytes.fromhex(byte[1]) if byte else piece.replace(self._mark, " ").encode()

    def is_part(self, piece: str) -> bool:
        return self._fallback and piece.startswith("<0x")


def find_spelling(backend: tokenizers.Tokenizer) -> Spelling | None:
    """The spelling behind a tokenizer's decoder; None where it is not known."""
    steps = _steps(json.loads(backend.decoder.__getstate__())) if backend.decoder is not None else []
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevel()
    if kinds == ["Metaspace"]:
        return SentencePiece(steps[0]["replacement"])
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and steps[0]["pattern"] == {"String": _METASPACE}:
        trims = [step for step in steps[3:] if step["type"] == "Strip" and step["content"] == " " and not step["stop"]]
        if steps[0]["content"] == " " and trims == steps[3:]:
            return SentencePiece(fallback=True)
    return None


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """A decoder's steps, those of sequences in their places."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]
