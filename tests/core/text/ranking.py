"""Byte sequences with ranks, and what merging them by rank gives, as the libraries do that have such vocabularies."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import regex
from tokenizers import Tokenizer as Fast
from tokenizers import models, pre_tokenizers, trainers

from lsv.text.spelling import ByteLevel

TEXTS = (
    "The cat sat on the mat, and then the other cats sat there, too.", "Grüße aus München, 12345 €!",
    "  HTTPServer\r\n\r\n  def f(x):\n\treturn x/2  ", "日本語のテキスト、中文。", "\N{ROCKET}\N{ZERO WIDTH JOINER}",
    "aaaaaaaaaaaaaaaaa thethethe", "", " ",
)  # fmt: skip


@cache
def ranks() -> dict[bytes, int]:
    """Single bytes, then what training on the texts merges."""
    trained = Fast(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    pieces = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    merged = [ByteLevel().spell(piece) for piece, _ in pieces if len(piece) > 1]
    return {content: rank for rank, content in enumerate([*(bytes([byte]) for byte in range(256)), *merged])}


def merge_by_rank(text: str, pattern: str) -> list[int]:
    """Within each part the neighbours that together have the lowest rank are merged, until there are none."""
    found: list[int] = []
    for part in regex.findall(pattern, text):
        pieces = [bytes([byte]) for byte in part.encode()]
        while len(pieces) > 1:
            pairs = [ranks().get(one + other) for one, other in pairwise(pieces)]
            best = min((rank for rank in pairs if rank is not None), default=None)
            if best is None:
                break
            at = pairs.index(best)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        found += [ranks()[piece] for piece in pieces]
    return found
