"""Suffix lookup: drafts what followed the last tokens of a sequence earlier, in it or in other answers to its tenant.

Oliaro et al., "SuffixDecoding" (2024). Similar requests, above all from programs, get similar answers. An index for
each salt holds all suffixes of past answers. When it is full, its oldest half is dropped.
Accepted drafts show in a client's counts and in the timing of its stream, so answers to other tenants must not be
drafted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lsv.config import Drafts
from lsv_base.errors import ConfigError
from lsv_drafters.ngram import NgramIndex
from lsv_runtime.drafts.drafter import Draftable, Drafter

_INDEX = "suffix"
_SHORTEST = 2
_DEPTH, _REQUESTS, _LEAST = 24, 10000, 0.1
_MOST_TOKENS = 1 << 20
"""Tokens of past answers; each takes some hundred bytes."""
_LED_BY = 8
"""Last tokens of a prompt that are kept with the answer: what its beginning is known by."""
_BORDER = -1
"""No token: what stands between answers."""


class SuffixDrafter(Drafter):
    """Looks for the longest run of last tokens that came before, and proposes what followed most of its last ones."""

    def __init__(self, drafts: Drafts) -> None:
        self._depth = _read_count(drafts.options, "suffix_decoding_max_tree_depth", _DEPTH, low=_SHORTEST)
        requests = _read_count(drafts.options, "suffix_decoding_max_cached_requests", _REQUESTS, low=0)
        self._least = _read_share(drafts.options, "suffix_decoding_min_token_prob", _LEAST)
        self._pasts = Pasts(self._depth, requests, _MOST_TOKENS)

    def propose(self, sequences: Sequence[Draftable]) -> list[list[int]]:
        return [self._follow(one) for one in sequences]

    def _follow(self, one: Draftable) -> list[int]:
        if _INDEX not in one.memory:
            one.memory[_INDEX] = one.salt, one.prompt, NgramIndex(_SHORTEST, self._depth)
        own: NgramIndex = one.memory[_INDEX][2]
        own.extend(one.ids[len(own) :].tolist())
        return agree(self._pasts.find(one.salt, own), one.most, self._least)

    def end(self, memory: dict[str, Any]) -> None:
        if _INDEX in memory:
            salt, prompt, own = memory.pop(_INDEX)
            self._pasts.add(salt, own.tokens[max(0, prompt - _LED_BY) :])


Places = list[tuple[Sequence[int], int]]
"""Token lists, and places in them."""


class Pasts:
    """The past answers of each tenant by salt, with limits on answers and tokens for all tenants together. Beyond a
    limit, all answers of the least recently used tenant are dropped.
    """

    def __init__(self, depth: int, requests: int, tokens: int) -> None:
        self._depth, self._requests, self._tokens = depth, requests, tokens
        self._by_salt: OrderedDict[bytes, Past] = OrderedDict()
        self._answers = self._size = 0

    def __len__(self) -> int:
        """The number of tokens in the index."""
        return self._size

    def add(self, salt: bytes, answer: Sequence[int]) -> None:
        past = self._by_salt.get(salt)
        if past is None:
            past = self._by_salt[salt] = Past(self._depth, self._requests, self._tokens)
        self._by_salt.move_to_end(salt)
        self._answers, self._size = self._answers - past.answers, self._size - len(past)
        past.add(answer)
        self._answers, self._size = self._answers + past.answers, self._size + len(past)
        while len(self._by_salt) > 1 and (self._answers > self._requests or self._size > self._tokens):
            _, oldest = self._by_salt.popitem(last=False)
            self._answers, self._size = self._answers - oldest.answers, self._size - len(oldest)

    def find(self, salt: bytes, own: NgramIndex) -> Places:
        """Earlier places of the longest run of the last tokens, in the sequence itself and in its tenant's answers."""
        past = self._by_salt.get(salt)
        return find_longest(own, () if past is None else past.indices)


class Past:
    """Past answers of one tenant, with limits on answers, tokens and search depth."""

    def __init__(self, depth: int, requests: int, tokens: int) -> None:
        self._depth, self._requests, self._tokens = depth, requests // 2, tokens // 2
        self._older = self._newer = NgramIndex(_SHORTEST, depth)
        self._added = 0
        self._before = 0

    @property
    def answers(self) -> int:
        """The number of answers."""
        return self._added + self._before

    @property
    def indices(self) -> tuple[NgramIndex, ...]:
        """The indexes, the newer one first."""
        return (self._newer,) if self._older is self._newer else (self._newer, self._older)

    def __len__(self) -> int:
        return len(self._newer) + (0 if self._older is self._newer else len(self._older))

    def add(self, answer: Sequence[int]) -> None:
        if not self._requests or len(answer) > self._tokens:
            return
        if self._added == self._requests or len(self._newer) + len(answer) >= self._tokens:
            self._older, self._newer = self._newer, NgramIndex(_SHORTEST, self._depth)
            self._before, self._added = self._added, 0
        self._newer.extend((*answer, _BORDER))
        self._added += 1


def find_longest(own: NgramIndex, others: Iterable[NgramIndex]) -> Places:
    """Earlier places of the longest run of the last tokens of ``own``, in it and in other answers."""
    found: Places = []
    longest = 0
    for index in (own, *others):
        for place, length in index.runs(own.tokens):
            if length > longest:
                found, longest = [], length
            if length == longest:
                found.append((index.tokens, place))
    return found


def agree(places: Places, most: int, least: float) -> list[int]:
    """What most of the places go on with, as long as that is as likely as ``least``: each counts the same."""
    found: list[int] = []
    likely = 1.0
    while places and len(found) < most:
        following = Counter(tokens[place] for tokens, place in places if place < len(tokens))
        if not following:
            break
        token, count = following.most_common(1)[0]
        likely *= count / len(places)
        if token == _BORDER or likely < least:
            break
        found.append(token)
        places = [(tokens, place + 1) for tokens, place in places if place < len(tokens) and tokens[place] == token]
    return found


def _read_count(options: Mapping[str, Any], key: str, default: int, *, low: int) -> int:
    value = options.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise _refused(key, f"a whole number from {low} on", value)
    return value


def _read_share(options: Mapping[str, Any], key: str, default: float) -> float:
    value = options.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise _refused(key, "a number from 0 to 1", value)
    return float(value)


def _refused(key: str, wanted: str, value: object) -> ConfigError:
    name = "speculative_config"
    return ConfigError(f"{name}: {key} must be {wanted}, got {value!r:.100}", param=name)
