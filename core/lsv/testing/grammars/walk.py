"""Following grammars byte by byte, over a vocabulary of one token a byte."""

from __future__ import annotations

import random

import numpy as np

from lsv.grammars.grammar import Grammar, Matcher, Vocabulary

EOS = 256
_WIDTH = 260
BYTES = Vocabulary(
    [bytes([byte]) for byte in range(256)] + [b"</s>", b"", b"", b""],
    frozenset({EOS}),
    (EOS,),
    lambda text: list(text.encode()),
)
"""A token a byte, an end, and three ids without a token."""


def allowed(matcher: Matcher) -> list[int]:
    """The tokens that may follow."""
    words = np.zeros(-(-_WIDTH // 32), np.uint32)
    matcher.fill(words.data)
    found: list[int] = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
    assert all(token <= EOS for token in found), "an id without a token may follow"
    return found


def follows(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is a whole answer: each byte is allowed by the mask before it, and then the end."""
    matcher = grammar.begin()
    for byte in text.encode():
        if byte not in allowed(matcher):
            return False
        assert matcher.accept([byte]), "the mask allowed what the matcher refuses"
    return EOS in allowed(matcher)


def draw(grammar: Grammar, seed: int, most: int = 400) -> str | None:
    """An answer drawn at random, which likes to end; None where it has not ended after ``most`` bytes."""
    chance, matcher, answer = random.Random(seed), grammar.begin(), bytearray()
    for _ in range(most):
        tokens = allowed(matcher)
        assert tokens, f"nothing may follow {bytes(answer)!r}"
        closing = [token for token in tokens if token == EOS or chr(token) in '"]}']
        token = chance.choice(closing if closing and chance.random() < 0.4 else tokens)
        if token == EOS:
            return answer.decode()
        answer.append(token)
        assert matcher.accept([token]), "the mask allowed what the matcher refuses"
    return None
