"""The scheduler as a state machine: groups of several tenants come, are planned ahead, settled, aborted, ended early,
and run out of time in any order, and every answer is the undisturbed one.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason, Request, Status
from lsv.scheduler.limits import Limits
from lsv.scheduler.policy import Fcfs, Priority
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.requests import GivenGroup, make_request
from lsv_testing.fakes.rig import Rig

TIMEOUT = 6.0


class Requests(RuleBasedStateMachine):
    @initialize(
        depth=st.sampled_from([1, 2, 4]),
        blocks=st.integers(14, 40),
        tokens=st.integers(4, 30),
        seqs=st.integers(1, 6),
        policy=st.sampled_from([Fcfs, Priority]),
        caching=st.booleans(),
    )
    def start(self, depth, blocks, tokens, seqs, policy, caching) -> None:
        limits = Limits(max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=48, depth=depth)
        self.rig = Rig(num_blocks=blocks, prefix_caching=caching, policy=policy(), limits=limits)
        self.requests: dict[int, Request] = {}
        self.cut: dict[int, int] = {}
        self.spoils = 0

    @rule(
        prefix=st.integers(0, 20),
        own=st.lists(st.integers(0, 89), min_size=1, max_size=12),
        n=st.sampled_from([1, 1, 3]),
        most=st.sampled_from([1, 2, 8, 20]),
        tenant=st.sampled_from(["", "a", "b"]),
        weight=st.sampled_from([1.0, 2.5]),
        timeout=st.sampled_from([None, None, TIMEOUT]),
    )
    def add(self, prefix, own, n, most, tenant, weight, timeout) -> None:
        first = 1 + len(self.requests)
        made = [
            make_request(
                first + index, (*range(prefix), *own), index=index, sampling=SamplingParams(n=n, max_tokens=most),
                tenant=tenant, weight=weight, timeout=timeout, arrival=self.rig.clock(),
            )
            for index in range(n)
        ]  # fmt: skip
        self.rig.scheduler.add(GivenGroup(*made), self.rig.clock())
        self.requests |= {request.id: request for request in made}

    @rule()
    def plan(self) -> None:
        """Without waiting for what is in flight, if the depth allows."""
        self.rig.plan()

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.rig.step()
            self.rig.note(self.rig.scheduler.expire(self.rig.clock()))

    @rule(data=st.data())
    def abort(self, data) -> None:
        if alive := self._alive():
            self.rig.note(self.rig.scheduler.abort([data.draw(st.sampled_from(alive)).group]))

    @rule(data=st.data())
    def finish(self, data) -> None:
        """The client has found a stop string: some of the newest tokens do not belong to the answer."""
        told = [one for one in self._alive() if one.output]
        if told:
            one = data.draw(st.sampled_from(told))
            self.cut[one.id] = data.draw(st.integers(1, len(one.output)))
            outcome = self.rig.scheduler.finish(one.id, self.cut[one.id], FinishReason.STOP)
            assert outcome is not None
            self.rig.note([outcome])

    @rule(number=st.integers(0, 1000))
    def spoil(self, number: int) -> None:
        """Corrupt a cache page with NaN."""
        self.rig.worker.spoil(number)
        self.spoils += 1

    def _alive(self) -> list[Request]:
        return [one for one in self.requests.values() if one.status is not Status.FINISHED]

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.rig.run()
        for request in self.requests.values():
            assert request.status is Status.FINISHED
            *before, last = self.rig.news[request.id]
            assert last.finish is not None
            assert all(news.finish is None for news in before)
            told, expected = (
                self.rig.tokens(request.id),
                fake_tokens.expected_output(request, self.rig.scheduler.longest),
            )
            assert last.finish is not FinishReason.ERROR or self.spoils
            if last.finish in (FinishReason.ABORT, FinishReason.ERROR) or request.id in self.cut:
                assert told == expected[: len(told)]
            else:
                assert told == expected
        self.rig.ask_failed_again(tuple(self.requests.values()), self.spoils)
        assert self.rig.kv.usage == 0
        assert self.rig.kv.unreserved == self.rig.kv.num_blocks


TestRequests = pytest.mark.machine(Requests.TestCase)
TestRequests.settings = settings(deadline=None, stateful_step_count=30, suppress_health_check=list(HealthCheck))
