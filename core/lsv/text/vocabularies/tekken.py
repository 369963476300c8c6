"""Mistral's tokenizers (``tekken.json``) as fast tokenizers, without its library.

The file holds byte sequences by rank, the pattern that texts are split by before sequences are merged, and the tokens
that stand for themselves, which have the first ids. Source: mistral_common 1.13, tokens/tokenizers/tekken.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer

from lsv.text.vocabularies.ranked import make_tokenizer
from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import read_regular

FILE = "tekken.json"
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_TEMPLATES = {version: f"mistral_{version}" for version in ("v7", "v11", "v13")}
_MOST_SPECIALS = 1 << 16


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    """All ids, those of the special tokens among them; ranks beyond are left out."""
    default_num_special_tokens: int
    version: str = ""


class _Sequence(msgspec.Struct):
    rank: int
    token_bytes: bytes


class _Special(msgspec.Struct):
    rank: int
    token_str: str
    is_control: bool = True


_OLDER = tuple(
    _Special(rank, name)
    for rank, name in enumerate(
        (
            "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
            "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
        )
    )
)  # fmt: skip
"""The special tokens of files that list none."""


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Sequence]
    special_tokens: Sequence[_Special] | None = None


def read_tekken(file: Path) -> tuple[Tokenizer, str]:
    """The fast tokenizer of a file, and the name of the chat template of its version, if lsv has that.

    Raises ``CheckpointError`` for a file that is damaged.
    """
    try:
        found = msgspec.json.decode(read_regular(file), type=_File)
        return _build(found), _TEMPLATES.get(found.config.version, "")
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{file} is not a tokenizer of Mistral's: {cause}", param="tokenizer") from cause
    except Exception as cause:  # tokenizers raises bare Exception
        raise CheckpointError(f"{file} can't be made a tokenizer: {cause}", param="tokenizer") from cause


def _build(file: _File) -> Tokenizer:
    specials = _list_specials(file)
    added = {one.rank: AddedToken(one.token_str, special=one.is_control, normalized=False) for one in specials}
    sequences = _list_sequences(file, len(specials))
    return make_tokenizer(sequences, len(specials), added, file.config.pattern, (NAMED["bos_token"],))


def _list_specials(file: _File) -> list[_Special]:
    """All of them by id, those that have no name of their own by their number."""
    given, count = file.special_tokens, file.config.default_num_special_tokens
    listed = _OLDER if given is None else given
    if [one.rank for one in listed] != list(range(len(listed))) or not len(listed) <= count <= _MOST_SPECIALS:
        raise ValueError(f"its {count} special tokens must have the ranks from 0 on")
    if missing := {*NAMED.values()} - {one.token_str for one in listed}:
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    return [*listed, *(_Special(rank, f"<SPECIAL_{rank}>") for rank in range(len(listed), count))]


def _list_sequences(file: _File, before: int) -> list[bytes]:
    """By rank, those of the vocabulary that has so many special tokens ``before`` them."""
    count = file.config.default_vocab_size - before
    sequences = [one.token_bytes for one in file.vocab[: max(count, 0)]]
    if len(sequences) != count or any(one.rank != rank for rank, one in enumerate(file.vocab)):
        raise ValueError(f"it must have {count} sequences, their ranks from 0 on")
    return sequences
