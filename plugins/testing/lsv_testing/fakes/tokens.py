"""A language model without a model: the next token is a pure function of all tokens before it."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence

from lsv.request.media import Media
from lsv.request.request import Request
from lsv.scheduler.plan import Logprobs

VOCABULARY = 97
_MASK = (1 << 64) - 1


def fold(state: int, token: int) -> int:
    """The state (64 bits) after one more token; it names the whole sequence up to there."""
    state = ((state ^ (token + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9) & _MASK
    return state ^ (state >> 29)


def seen(ids: Sequence[int], media: Iterable[Media]) -> list[int]:
    """What such a model reads: in the places of media, numbers that stand for their embeddings.

    An item that tokens attend to is in the first of those.
    """
    read = list(ids)
    for one in media:
        number = int.from_bytes(one.hash[:4], "little")
        if one.cross:
            read[one.start] += number
        else:
            read[one.start : one.stop] = range(number, number + one.count)
    return read


def states(ids: Iterable[int], state: int = 0) -> list[int]:
    """The state after each of the tokens."""
    found: list[int] = []
    for token in ids:
        state = fold(state, token)
        found.append(state)
    return found


def next_token(state: int, withheld: Collection[int] = ()) -> int:
    """The token that follows, going on from it while it is ``withheld``."""
    token = (state >> 7) % VOCABULARY
    while token in withheld:
        token = (token + 1) % VOCABULARY
    return token


def expected_output(request: Request, longest: int) -> list[int]:
    """The whole answer to a request that nothing disturbs, computed one token after another."""
    sampling = request.sampling
    assert sampling is not None, "only generation has an answer"
    state = states(seen(request.prompt, request.media))[-1]
    output: list[int] = []
    most = min(longest - len(request.prompt), sampling.max_tokens or longest)
    while len(output) < most:
        withheld = request.stop_ids if len(output) < sampling.min_tokens else ()
        output.append(next_token(state, withheld))
        state = fold(state, output[-1])
        if output[-1] in request.stop_ids and len(output) >= sampling.min_tokens:
            break
    return output


def vector(state: int) -> bytes:
    """Four float32, little endian, that stand for a sequence."""
    return struct.pack("<4f", *((state >> shift & 0xFF) / 255 for shift in (0, 8, 16, 24)))


def logprobs(chosen: Sequence[int], others: int) -> Logprobs:
    """Each chosen token as the most likely one, and again as the first of the ``others`` most likely."""
    places = (0, *range(others))
    ids = tuple(tuple((token + place) % VOCABULARY for place in places) for token in chosen)
    values = (tuple(-0.5 - place for place in places),) * len(ids)
    return Logprobs(ids, values, (tuple(place + 1 for place in places),) * len(ids))
