"""Fast tokenizers of vocabularies whose byte sequences merge by rank, the lowest first (Mistral's, tiktoken's)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from lsv.text.spelling import ByteLevel

_MOST_BYTES = 1024
"""Of a sequence. How it may be merged is tried at each of its bytes."""


def make_tokenizer(
    sequences: Sequence[bytes], first: int, added: Mapping[int, AddedToken], pattern: str, begin: Sequence[str]
) -> Tokenizer:
    """``sequences`` by rank have the ids from ``first`` on, ``added`` tokens those they are listed by. A text is split
    by the ``pattern`` before anything is merged, and begins with the tokens ``begin``.

    Raises ``ValueError`` for sequences and tokens that can't be told apart, and what ``tokenizers`` raises.
    """
    ids, merges = _read_sequences(sequences, first)
    vocabulary = {**{token.content: number for number, token in added.items()}, **ids}
    if len(vocabulary) != len(added) + len(ids) or len(set(vocabulary.values())) != len(vocabulary):
        raise ValueError("a special token is a sequence, too, or is there twice")
    # a text's part that is a sequence is never taken apart, whether or not merges lead to it
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    parts: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([added[number] for number in sorted(added)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*begin, "$A"],
        pair=[*begin, "$A", "$B:1"],
        special_tokens=[(token, vocabulary[token]) for token in begin],
    )
    return tokenizer


def _read_sequences(sequences: Sequence[bytes], first: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Ids by the spelling of sequences, and the pairs that make them, lowest rank first."""
    if max(map(len, sequences), default=0) > _MOST_BYTES:
        raise ValueError("it has sequences that no model has")
    spelling = ByteLevel()
    ids = {spelling.write(content): first + rank for rank, content in enumerate(sequences)}
    if len(ids) != len(sequences):
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
