"""SentencePiece's models (``tokenizer.model``) as fast tokenizers, without its library.

The file is a protobuf message ``ModelProto`` (sentencepiece/src/sentencepiece_model.proto); of it are read the pieces,
and what kind of model they are of.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import read_regular

NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4
"""Kinds of pieces, ``SentencePiece.Type``."""
FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_UNIGRAM, _BPE = 1, 2
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_FIRST = b"\n"
"""What a file begins with: its first piece. Files of another library's may have the same name."""
_MOST_CHARACTERS = 4096


@dataclass(slots=True)
class Pieces:
    """The vocabulary of a model, by id."""

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    @property
    def ids(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    def of(self, *kinds: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds]


def find_model(folder: Path) -> Path | None:
    """The model of a folder's tokenizer."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def read_tokenizer(file: Path, settings: Mapping[str, Any], added: Mapping[str, int]) -> Tokenizer | None:
    """The fast tokenizer of a model of BPE as families of Llama's kind use it; None for a model that is another one.

    ``settings`` are those of tokenizer_config.json, ``added`` tokens of added_tokens.json. Raises ``CheckpointError``
    for a file that is damaged, and for added tokens that are out of order.
    """
    content = read_regular(file)
    if content[:1] != _FIRST:
        return None
    try:
        pieces, trainer, normalizer = _read(content)
    except (ValueError, IndexError, TypeError, AttributeError, struct.error) as cause:
        raise CheckpointError(f"{file} is not a model of sentencepiece: {cause}", param="tokenizer") from cause
    plain = normalizer.get(1, b"identity") == b"identity" and not normalizer.get(2) and not normalizer.get(4, 1)
    if trainer.get(3, _UNIGRAM) != _BPE or not plain or not pieces.tokens:
        return None
    front = bool(settings.get("add_prefix_space", normalizer.get(3, 1)))
    try:
        tokenizer = build_bpe(pieces, front=front, once=settings.get("legacy") is False)
        surround(tokenizer, pieces, _around(settings, pieces, "bos", "<s>"), _around(settings, pieces, "eos", "</s>"))
        _add(tokenizer, settings, added)
    except CheckpointError:
        raise
    except Exception as cause:  # tokenizers raises bare Exception
        raise CheckpointError(f"{file} can't be made a tokenizer: {cause}", param="tokenizer") from cause
    return tokenizer


def build_bpe(pieces: Pieces, *, front: bool, once: bool = False) -> Tokenizer:
    """BPE by scores: the neighbours whose piece has the highest are merged first.

    ``front`` puts a space before a text and before what follows an added token; ``once`` before the text alone.
    """
    unknown = next(iter(pieces.of(UNKNOWN)), None)
    tokenizer = Tokenizer(
        models.BPE(vocab=pieces.ids, merges=_merges(pieces), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    if front and once:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    else:
        steps: list[Any] = [normalizers.Prepend("▁")] if front else []
        tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    ends: list[Any] = [decoders.Strip(" ", 1, 0)] if front else []
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends])
    return tokenizer


def surround(tokenizer: Tokenizer, pieces: Pieces, first: str | None, last: str | None) -> None:
    """Add the tokens that are never split, and those before and behind a text."""
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in pieces.of(UNKNOWN, CONTROL)])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in pieces.of(USER)])
    if first or last:
        template = [token for token in (first, "$A", last) if token]
        ids = [(token, pieces.ids[token]) for token in (first, last) if token]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, pair=[*template, "$B:1"], special_tokens=ids
        )


def _merges(pieces: Pieces) -> list[tuple[str, str]]:
    ids, scores = pieces.ids, pieces.scores
    normal = [number for number, kind in enumerate(pieces.kinds) if kind == NORMAL]
    merges = []
    for number in sorted(normal, key=lambda number: -scores[number]):
        piece = pieces.tokens[number]
        cuts = ((piece[:place], piece[place:]) for place in range(1, len(piece)))
        merges += [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
    return merges


def _around(settings: Mapping[str, Any], pieces: Pieces, name: str, usual: str) -> str | None:
    """The token before or behind a text; none unless the settings ask for it, or it is where texts begin."""
    if not settings.get(f"add_{name}_token", name == "bos"):
        return None
    token = settings.get(f"{name}_token") or usual
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content in pieces.ids else None


def _add(tokenizer: Tokenizer, settings: Mapping[str, Any], added: Mapping[str, int]) -> None:
    """Tokens that checkpoints have beside the model's, which must follow it in order."""
    found = {number: AddedToken(content, normalized=False) for content, number in added.items()}
    for number, one in (settings.get("added_tokens_decoder") or {}).items():
        found[int(number)] = AddedToken(one["content"], special=bool(one.get("special")), normalized=False)
    for number, token in sorted(found.items()):
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != number:
            raise CheckpointError(
                f"the tokenizer's added token {token.content!r} is to be {number}, which does not follow its model",
                param="tokenizer",
            )


def _read(content: bytes) -> tuple[Pieces, dict[int, Any], dict[int, Any]]:
    """The pieces, and the numbers and texts of the trainer's and the normaliser's settings by their fields."""
    pieces = Pieces()
    settings: dict[int, dict[int, Any]] = {_TRAINER: {}, _NORMALIZER: {}}
    for number, value in _fields(content):
        if number == _PIECES:
            piece = dict(_fields(value))
            pieces.tokens.append(piece.get(1, b"").decode())
            (score,) = struct.unpack("<f", piece.get(2, bytes(4)))
            pieces.scores.append(score)
            pieces.kinds.append(piece.get(3, NORMAL))
        elif number in settings:
            settings[number] = dict(_fields(value))
    if max(map(len, pieces.tokens), default=0) > _MOST_CHARACTERS:
        raise ValueError("it has pieces that no model has")
    return pieces, settings[_TRAINER], settings[_NORMALIZER]


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message: numbers for varints, bytes for everything else."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        if tag & 7 == 0:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        if tag & 7 == 2:
            length, place = _varint(message, place)
        elif tag & 7 in (1, 5):
            length = 8 if tag & 7 == 1 else 4
        else:
            raise ValueError(f"a field has the wire type {tag & 7}")
        if place + length > len(message):
            raise ValueError("it is cut short")
        yield tag >> 3, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number and the place behind it."""
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError("a number has too many digits")
