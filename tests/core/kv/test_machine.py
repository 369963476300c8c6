"""The KV cache as a state machine: whatever is opened, grown, published, given back and forgotten, the books add up and
a prefix is found only where its blocks have been computed.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from lsv.kv.manager import KVManager
from lsv.kv.spec import KVGroup
from lsv.kv.table import Table
from lsv.request.params import SamplingParams
from lsv_testing.fakes.requests import make_request

SIZE, BLOCKS, LONGEST = 4, 24, 40
FULL = KVGroup(0, "full", (0,), 1)
LAYOUTS = {
    "full": (FULL,),
    "window": (KVGroup(0, "window", (0,), 1, window=6),),
    "state": (KVGroup(0, "state", (0,), 0, window=2, state_bytes=8),),
    "states beside tokens": (
        FULL,
        *(KVGroup(index, "state", (index,), 0, window=2, state_bytes=8) for index in (1, 2)),
    ),
    "both": (FULL, KVGroup(1, "window", (1,), 1, window=10)),
}
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=LONGEST)
"""Of a vocabulary of two, so that many prefixes are shared."""


class Cache(RuleBasedStateMachine):
    tables = Bundle("tables")

    @initialize(layout=st.sampled_from(list(LAYOUTS)))
    def start(self, layout: str) -> None:
        self.kv = KVManager(LAYOUTS[layout], BLOCKS, SIZE, root=b"root", prefix_caching=True)
        self.held: dict[int, Table] = {}
        self.computed: dict[int, int] = {}
        self.published: set[tuple[bytes, tuple[int, ...]]] = set()
        self.count = 0

    @rule(target=tables, tokens=TOKENS, salt=st.sampled_from([b"", b"x"]))
    def open(self, tokens: list[int], salt: bytes) -> int:
        """A request takes what is cached of its prompt; one for which there is no room holds nothing."""
        self.count += 1
        table = self.kv.open(make_request(self.count, tokens, sampling=SamplingParams(), salt=salt))
        match = self.kv.match(table, len(tokens) - 1)
        assert match.tokens % SIZE == 0
        assert match.tokens < len(tokens)
        for end in range(SIZE, match.tokens + 1, SIZE):
            assert (salt, tuple(tokens[:end])) in self.published, "a prefix is found that nobody has computed"
        found = sum(map(len, match.blocks))
        if found - self.kv.in_use(match) > self.kv.unreserved:
            return self.count
        self.kv.allocate(table, match, len(tokens), 0)
        self.held[self.count] = table
        self.computed[self.count] = match.tokens
        return self.count

    @rule(id=tables, more=st.integers(1, 17))
    def compute(self, id: int, more: int) -> None:
        """More of its tokens are computed, as many as there are blocks for."""
        table = self.held.get(id)
        if table is None:
            return
        tokens = table.request.prompt
        until = min(len(tokens), self.computed[id] + more)
        if not self.kv.grow(table, until):
            return
        self.kv.settle(table, until)
        self.computed[id] = until
        for end in range(SIZE, until + 1, SIZE):
            self.published.add((table.request.salt, tuple(tokens[:end])))

    @rule(ids=st.lists(consumes(tables), max_size=3))
    def release(self, ids: list[int]) -> None:
        self.kv.release([self.held.pop(id) for id in ids if id in self.held])

    @rule()
    def reset(self) -> None:
        self.kv.reset_prefix_cache()
        self.published.clear()

    @invariant()
    def books_add_up(self) -> None:
        if hasattr(self, "kv"):
            self.kv.check(list(self.held.values()))

    def teardown(self) -> None:
        if hasattr(self, "kv"):
            self.kv.release(list(self.held.values()))
            assert self.kv.usage == 0
            assert self.kv.unreserved == BLOCKS


TestCache = pytest.mark.machine(Cache.TestCase)
TestCache.settings = settings(deadline=None, stateful_step_count=40)
