"""Mistral's tokenizers (``tekken.json``) as fast tokenizers, without its library.

The file holds byte sequences by rank, the pattern that texts are split by before sequences are merged, and the tokens
that stand for themselves, which have the first ids. Source: mistral_common 1.13, tokens/tokenizers/tekken.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from lsv.errors import CheckpointError
from lsv.text.spelling import ByteLevel

FILE = "tekken.json"
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_TEMPLATES = {version: f"mistral_{version}" for version in ("v7", "v11", "v13")}
_MOST_BYTES = 1024
"""Of a sequence. How it may be merged is tried at each of its bytes."""
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
        found = msgspec.json.decode(file.read_bytes(), type=_File)
        return _build(found), _TEMPLATES.get(found.config.version, "")
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{file} is not a tokenizer of Mistral's: {cause}", param="tokenizer") from cause
    except Exception as cause:  # tokenizers raises bare Exception
        raise CheckpointError(f"{file} can't be made a tokenizer: {cause}", param="tokenizer") from cause


def _build(file: _File) -> Tokenizer:
    specials = _list_specials(file)
    ids, merges = _read_sequences(file, len(specials))
    vocabulary = {**{one.token_str: one.rank for one in specials}, **ids}
    if len(vocabulary) != len(specials) + len(ids):
        raise ValueError("a special token is a sequence, too, or is there twice")
    # a text's part that is a sequence is never taken apart, whether or not merges lead to it
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    parts: list[Any] = [
        pre_tokenizers.Split(Regex(file.config.pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(one.token_str, special=one.is_control, normalized=False) for one in specials])
    first = NAMED["bos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[first, "$A"], pair=[first, "$A", "$B:1"], special_tokens=[(first, vocabulary[first])]
    )
    return tokenizer


def _list_specials(file: _File) -> list[_Special]:
    """All of them by id, those that have no name of their own by their number."""
    given, count = file.special_tokens, file.config.default_num_special_tokens
    listed = _OLDER if given is None else given
    if [one.rank for one in listed] != list(range(len(listed))) or not len(listed) <= count <= _MOST_SPECIALS:
        raise ValueError(f"its special tokens must have ranks from 0 on, of which there are {count}")
    if missing := {*NAMED.values()} - {one.token_str for one in listed}:
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    return [*listed, *(_Special(rank, f"<SPECIAL_{rank}>") for rank in range(len(listed), count))]


def _read_sequences(file: _File, before: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Ids by the spelling of sequences, behind those ``before``; and the pairs that make them, lowest rank first."""
    count = file.config.default_vocab_size - before
    sequences = [one.token_bytes for one in file.vocab[: max(count, 0)]]
    if len(sequences) != count or any(one.rank != rank for rank, one in enumerate(file.vocab)):
        raise ValueError(f"it must have {count} sequences, their ranks from 0 on")
    if max(map(len, sequences), default=0) > _MOST_BYTES:
        raise ValueError("it has sequences that no model has")
    spelling = ByteLevel()
    ids = {spelling.write(content): before + rank for rank, content in enumerate(sequences)}
    if len(ids) != count:
        raise ValueError("a sequence is there twice")
    merges: list[tuple[str, str]] = []
    for piece in ids:
        cuts = [
            (left, right)
            for place in range(1, len(piece))
            if (right := piece[place:]) in ids and (left := piece[:place]) in ids
        ]
        merges += cuts if len(cuts) < 2 else sorted(cuts, key=lambda cut: (ids[cut[0]], ids[cut[1]]))
    return ids, merges
