"""The scheduler with host memory and a keeper behind its cache: what comes back is right, what is lost is computed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lsv.kv.spec import STATE_WINDOW, KVGroup
from lsv.kv.tiers.tiers import Tiers
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason, Request, Status
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import Kind
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.requests import GivenGroup, make_request
from lsv_testing.fakes.rig import FULL, Rig
from lsv_testing.fakes.tiers import FakeKeeper
from lsv_testing.fakes.worker import NOT_FINITE

WINDOWED = (
    KVGroup(0, "full", (0,), 1),
    KVGroup(1, "window", (1,), 1, window=6),
    KVGroup(2, "window", (2,), 1, window=6),
)
HYBRID = (KVGroup(0, "full", (0,), 1), KVGroup(1, "state", (1,), 0, window=STATE_WINDOW, state_bytes=64))
GROUPS = {"full": FULL, "windowed": WINDOWED, "hybrid": HYBRID}
PROMPT = tuple(range(30))


def evict(rig: Rig) -> None:
    """Other prompts take every block."""
    for number in range(5):
        rig.ask(900 + number, tuple(range(100 + 40 * number, 140 + 40 * number)), 2)
        rig.run()


def cached(rig: Rig, id: int, prompt: tuple[int, ...] = PROMPT, **given) -> int:
    request = rig.add(make_request(id, prompt, sampling=SamplingParams(temperature=0.0, max_tokens=4), **given))
    rig.run()
    assert rig.tokens(id) == fake_tokens.expected_output(request, rig.scheduler.longest)
    return request.cached


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("depth", [1, 2])
def test_what_was_evicted_comes_back(groups, depth):
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, depth=depth)
    rig = Rig(groups=GROUPS[groups], num_blocks=40, cells=400, limits=limits)
    assert cached(rig, 1) == 0
    evict(rig)
    assert cached(rig, 2) == 28
    assert rig.worker.copies.loaded
    assert rig.kv.tiers.hits == 28
    assert 0 < rig.kv.tiers.usage < 1


def test_without_room_behind_the_device_nothing_comes_back():
    rig = Rig(num_blocks=16, cells=2)
    cached(rig, 1)
    evict(rig)
    assert cached(rig, 2) == 0


def test_a_prompt_is_partly_on_the_device_and_partly_behind_it():
    rig = Rig(num_blocks=14, cells=100)
    cached(rig, 1)
    rig.ask(2, range(200, 236), 2)
    rig.run()
    on_device = rig.kv.tiers.hits
    assert cached(rig, 3) == 28
    assert 0 < rig.kv.tiers.hits - on_device < 28


def test_what_computed_the_last_block_is_saved_though_nobody_asks_any_more():
    rig = Rig(cells=100)
    rig.ask(1, range(8), 1)
    rig.run()
    assert rig.plans[-1].kind is Kind.IDLE
    assert len(rig.plans[-1].saves) == 2
    assert not rig.scheduler.has_work


def test_the_next_engine_finds_what_a_keeper_has():
    keeper = FakeKeeper()
    cached(Rig(cells=0, keeper=keeper), 1)
    after = Rig(cells=0, keeper=keeper)
    assert cached(after, 1) == 28
    assert cached(after, 2) == 28
    assert after.kv.tiers.hits == 28, "the second time it is on the device"


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_keeper_has_lost_is_computed(groups, depth):
    keeper = FakeKeeper()
    cached(Rig(groups=GROUPS[groups], cells=0, keeper=keeper), 1)
    keeper.gone = set(list(keeper.contents)[-4:])
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, depth=depth)
    after = Rig(groups=GROUPS[groups], cells=0, keeper=keeper, limits=limits)
    assert cached(after, 1) < 28
    assert after.scheduler.preemptions == 0, "nobody took its blocks"
    assert not keeper.gone, "it was saved anew"
    last = Rig(groups=GROUPS[groups], cells=0, keeper=keeper)
    assert cached(last, 1) == 28


def test_a_request_that_waits_for_lost_blocks_is_computed_too():
    keeper = FakeKeeper()
    cached(Rig(cells=0, keeper=keeper), 1)
    keeper.gone = set(keeper.contents)
    rig = Rig(cells=0, keeper=keeper)
    both = [rig.ask(1, PROMPT, 4), rig.ask(2, PROMPT, 4)]
    rig.run()
    for request in both:
        assert rig.tokens(request.id) == fake_tokens.expected_output(request, rig.scheduler.longest)
    assert [request.cached for request in both] == [0, 28]


@pytest.mark.parametrize("groups", GROUPS)
def test_what_others_will_ask_for_is_saved_again_where_it_has_gone(groups):
    keeper = FakeKeeper()
    rig = Rig(groups=GROUPS[groups], cells=0, keeper=keeper)
    cached(rig, 1)
    keeper.contents.clear()
    assert cached(rig, 2) == 28
    names = rig.kv.names(make_request(2, PROMPT, sampling=SamplingParams(max_tokens=4)))
    assert not keeper.contents.keys() & names, "it is on the device, and was saved before"
    assert cached(rig, 3, hand_on=True) == 28
    assert keeper.contents.keys() >= set(names)
    assert cached(Rig(groups=GROUPS[groups], cells=0, keeper=keeper), 1) == 28


@pytest.mark.parametrize("groups", GROUPS)
def test_what_a_prompt_lacks_is_what_it_could_begin_behind(groups):
    keeper = FakeKeeper()
    first = Rig(groups=GROUPS[groups], cells=0, keeper=keeper)
    cached(first, 1)
    second = Rig(groups=GROUPS[groups], cells=0, keeper=(other := FakeKeeper()))
    wanted = second.kv.missing(make_request(1, PROMPT, sampling=SamplingParams(max_tokens=4)))
    assert wanted[0] in keeper.contents
    other.contents = {key: keeper.contents[key] for key in wanted}
    assert cached(second, 1) == 28
    assert not second.kv.missing(make_request(2, PROMPT, sampling=SamplingParams(max_tokens=4)))


def test_a_keepers_other_end_is_told_what_is_coming():
    told: list[bytes] = []
    tiers = Tiers(0, keeper := FakeKeeper(), told.append)
    tiers.save(b"a", [1])
    keeper.contents[b"a"] = ()
    tiers.save(b"a", [1])
    assert told == [b"a"]
    tiers.lose(b"a")
    tiers.save(b"a", [2])
    assert told == [b"a"] * 2
    keeper.contents.clear()
    tiers.save(b"a", [3])
    assert told == [b"a"] * 3, "somebody has removed it since, and it was computed again"


def test_salts_keep_tenants_apart():
    rig = Rig(cells=100, keeper=FakeKeeper())
    cached(rig, 1, salt=b"a")
    rig.scheduler.reset_prefix_cache()
    assert cached(rig, 2, salt=b"b") == 0
    assert cached(rig, 3, salt=b"a") == 28


def test_forgetting_the_cache_forgets_host_memory():
    rig = Rig(cells=100)
    cached(rig, 1)
    rig.scheduler.reset_prefix_cache()
    assert rig.kv.tiers.usage == 0
    assert cached(rig, 2) == 0


def arrive(rig: Rig, keys: Iterable[bytes]) -> None:
    assert rig.kv.arrivals is not None
    for key in keys:
        rig.kv.arrivals.note(key)


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("depth", [1, 2])
def test_what_arrives_is_on_the_device_before_anybody_begins(groups, depth):
    keeper = FakeKeeper()
    cached(Rig(groups=GROUPS[groups], cells=0, keeper=keeper), 1)
    limits = Limits(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=64, depth=depth)
    rig = Rig(groups=GROUPS[groups], cells=0, keeper=keeper, limits=limits)
    other = rig.ask(2, range(200, 220), 6)
    wanted = rig.kv.names(make_request(1, PROMPT, sampling=SamplingParams(max_tokens=4)))
    for key in wanted:  # one after the other, as they are computed elsewhere; some come twice
        arrive(rig, [key, key, *wanted[:1]])
        rig.step()
    rig.run()
    assert rig.tokens(2) == fake_tokens.expected_output(other, rig.scheduler.longest)
    assert rig.worker.copies.loaded == sum(len(load.blocks) for plan in rig.plans for load in plan.loads) > 0
    before = rig.worker.copies.loaded
    assert cached(rig, 1) == 28
    assert rig.kv.tiers.hits == 0, "all of it was on the device"
    assert rig.worker.copies.loaded == before


def test_a_step_loads_no_more_than_a_little_for_those_who_wait(monkeypatch):
    monkeypatch.setattr("lsv.scheduler.planner._ARRIVING_TOKENS", 8)
    keeper = FakeKeeper()
    cached(Rig(cells=0, keeper=keeper), 1)
    rig = Rig(cells=0, keeper=keeper)
    arrive(rig, keeper.contents)
    rig.run()
    for _ in range(9):
        rig.step()
    assert [len(plan.loads) for plan in rig.plans] == [2, 2, 2, 2]
    assert {plan.kind for plan in rig.plans} == {Kind.IDLE}


def test_what_a_request_loads_itself_is_not_loaded_twice():
    keeper = FakeKeeper()
    cached(Rig(cells=0, keeper=keeper), 1)
    rig = Rig(cells=0, keeper=keeper)
    arrive(rig, keeper.contents)
    assert cached(rig, 1) == 28
    assert rig.kv.tiers.hits == 28
    assert rig.worker.copies.loaded == 8, "its seven, and one of the answer's"


def test_what_arrives_and_is_lost_is_computed():
    keeper = FakeKeeper()
    cached(Rig(cells=0, keeper=keeper), 1)
    rig = Rig(cells=0, keeper=keeper)
    keeper.gone = set(list(keeper.contents)[3:5])
    arrive(rig, [*keeper.contents, b"\0\0" + bytes(32)])
    rig.step()
    assert cached(rig, 1) == 12


def test_what_arrives_takes_no_blocks_from_those_who_run():
    keeper = FakeKeeper()
    cached(Rig(cells=0, keeper=keeper), 1)
    rig = Rig(cells=0, keeper=keeper, num_blocks=11)
    rig.ask(2, range(200, 232), 8)
    rig.step()
    arrive(rig, keeper.contents)
    rig.run()
    assert sum(len(plan.loads) for plan in rig.plans) <= 2
    assert rig.scheduler.preemptions == 0
    assert cached(rig, 1) == 28


def test_what_was_forgotten_before_it_was_saved_is_saved_when_it_is_computed_again():
    keeper = FakeKeeper()
    rig = Rig(cells=0, keeper=keeper)
    rig.ask(1, PROMPT, 1)
    rig.step()
    rig.scheduler.reset_prefix_cache()
    rig.run()
    assert not keeper.contents
    rig.ask(2, PROMPT, 1)
    rig.run()
    assert len(keeper.contents) == 7


@pytest.mark.parametrize("groups", GROUPS)
def test_contents_that_another_engine_revokes_are_forgotten_everywhere(groups):
    keeper = FakeKeeper()
    rig = Rig(groups=GROUPS[groups], cells=100, keeper=keeper)
    cached(rig, 1)
    request = make_request(2, PROMPT, sampling=SamplingParams(max_tokens=4))
    names = rig.kv.names(request)
    assert keeper.contents.keys() >= set(names)
    rig.kv.revocations.note(names)
    rig.plan()
    assert rig.kv.missing(request) == names
    assert not keeper.contents.keys() & set(names)
    rig.run()
    assert cached(rig, 3) == 0
    assert cached(rig, 4) == 28, "what is computed anew counts"


def test_others_hear_once_of_what_is_revoked():
    """Two engines that fetch from each other would otherwise revoke forever."""
    keeper, heard = FakeKeeper(), []
    keeper.contents = {b"kept": (), b"kept, too": ()}
    tiers = Tiers(0, keeper, revoke=heard.extend)
    tiers.save(b"on its way", (1,))
    for _ in range(2):
        tiers.revoke([b"kept", b"on its way", b"of the device alone"])
    assert heard == [b"kept", b"on its way"]
    assert tiers.take_revoked() == (b"kept", b"on its way")
    assert not tiers.unsaved
    tiers.save(b"kept", (1,))
    tiers.revoke([b"kept"])
    assert heard == [b"kept", b"on its way", b"kept"]


def test_what_is_revoked_while_it_is_loaded_gets_no_name():
    keeper = FakeKeeper()
    cached(Rig(cells=0, keeper=keeper), 1)
    rig = Rig(cells=0, keeper=keeper)
    request = make_request(2, PROMPT, sampling=SamplingParams(max_tokens=4))
    names = rig.kv.names(request)
    arrive(rig, names)
    rig.plan()
    rig.kv.revocations.revoke(names[1:])
    rig.settle()
    assert rig.kv.missing(request) == names[1:]


class Tiered(RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(sorted(GROUPS)),
        depth=st.sampled_from([1, 2, 4]),
        blocks=st.integers(50, 70),
        cells=st.integers(0, 60),
        tokens=st.integers(6, 30),
        keeps=st.booleans(),
    )
    def start(self, groups, depth, blocks, cells, tokens, keeps) -> None:
        limits = Limits(max_num_seqs=4, max_num_batched_tokens=tokens, max_model_len=48, depth=depth)
        self.keeper = FakeKeeper() if keeps else None
        self.rig = Rig(groups=GROUPS[groups], num_blocks=blocks, cells=cells, keeper=self.keeper, limits=limits)
        self.requests: dict[int, Request] = {}
        self.spoils = 0

    @rule(
        prefix=st.integers(0, 24),
        family=st.integers(0, 4),
        own=st.lists(st.integers(0, 89), min_size=1, max_size=8),
        most=st.sampled_from([1, 2, 8]),
    )
    def add(self, prefix, family, own, most) -> None:
        request = make_request(
            1 + len(self.requests), (*range(family, family + prefix), *own), sampling=SamplingParams(max_tokens=most),
            arrival=self.rig.clock(),
        )  # fmt: skip
        self.rig.scheduler.add(GivenGroup(request), self.rig.clock())
        self.requests[request.id] = request

    @rule()
    def plan(self) -> None:
        self.rig.plan()

    @rule(steps=st.integers(1, 8))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.rig.step()

    @rule(data=st.data())
    def abort(self, data) -> None:
        alive = [one for one in self.requests.values() if one.status is not Status.FINISHED]
        if alive:
            self.rig.note(self.rig.scheduler.abort([data.draw(st.sampled_from(alive)).group]))

    @rule(data=st.data())
    def lose(self, data) -> None:
        if self.keeper is not None and self.keeper.contents:
            self.keeper.gone |= set(data.draw(st.lists(st.sampled_from(sorted(self.keeper.contents)), max_size=4)))

    @rule(data=st.data())
    def arrive(self, data) -> None:
        if self.keeper is not None and self.keeper.contents and self.rig.kv.arrivals is not None:
            for key in data.draw(st.lists(st.sampled_from(sorted(self.keeper.contents)), max_size=20)):
                self.rig.kv.arrivals.note(key)

    @rule(number=st.integers(0, 1000))
    def spoil(self, number: int) -> None:
        """Corrupt a cache page with NaN, which copies of it inherit."""
        self.rig.worker.spoil(number)
        self.spoils += 1

    @rule(data=st.data())
    def hear(self, data) -> None:
        """Another engine revokes some contents."""
        if self.keeper is not None and self.keeper.contents:
            keys = data.draw(st.lists(st.sampled_from(sorted(self.keeper.contents)), max_size=4))
            self.rig.kv.revocations.note(keys)

    @rule()
    def forget(self) -> None:
        self.rig.scheduler.reset_prefix_cache()

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.run()
        for request in self.requests.values():
            told = self.rig.tokens(request.id)
            expected = fake_tokens.expected_output(request, self.rig.scheduler.longest)
            last = self.rig.news[request.id][-1]
            cut = last.finish is FinishReason.ABORT or (last.error == NOT_FINITE and self.spoils)
            assert told == (expected[: len(told)] if cut else expected)
        self.rig.ask_failed_again(tuple(self.requests.values()), self.spoils)
        assert self.rig.kv.usage == 0


TestTiered = pytest.mark.machine(Tiered.TestCase)
TestTiered.settings = settings(deadline=None, stateful_step_count=30, suppress_health_check=list(HealthCheck))
