"""Following grammars byte by byte, over a vocabulary of one token a byte."""

from __future__ import annotations

import random

import numpy as np

from lsv.grammars.grammar import Grammar, Matcher, Vocabulary, rewindable

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


def check_ahead(grammar: Grammar, seed: int, most: int = 60) -> int:
    """Hold a matcher that goes ahead of its answers against one that has gone the same way in earnest, in each place of
    an answer drawn at random. Returns the most tokens by which it went ahead.
    """
    chance, matcher, answer, longest = random.Random(seed), grammar.begin(), list[int](), 0
    ahead = rewindable(matcher)
    assert ahead is not None, "the matcher can't go ahead"
    while len(answer) < most and not matcher.finished:
        before, drafts = allowed(matcher), _draft(grammar, answer, chance)
        other = grammar.begin()
        assert other.accept(answer)
        taken = ahead.advance(drafts)
        for token in drafts[:taken]:
            assert token in allowed(other), "it went by what may not follow"
            assert other.accept([token])
        assert taken == len(drafts) or other.finished or drafts[taken] not in allowed(other), "it stopped early"
        assert (ahead.finished, ahead.fault) == (other.finished, None)
        assert allowed(ahead) == allowed(other)
        ahead.rollback(taken)
        assert (allowed(matcher), matcher.finished, matcher.fault) == (before, False, None), "it did not come back"
        longest = max(longest, taken)
        going = [token for token in before if token != EOS]
        if not going:
            break
        answer.append(chance.choice(going))
        assert matcher.accept(answer[-1:])
    return longest


def _draft(grammar: Grammar, answer: list[int], chance: random.Random) -> list[int]:
    """What may follow an answer, up to somewhere or to its end, and then something else."""
    matcher, found = grammar.begin(), list[int]()
    assert matcher.accept(answer)
    for _ in range(chance.randrange(12)):
        tokens = [token for token in allowed(matcher) if token != EOS]
        if matcher.finished or not tokens:
            break
        found.append(chance.choice(tokens))
        assert matcher.accept(found[-1:])
    return [*found, *chance.choices(range(256), k=3)]
