"""Random populations: whatever the order, the sizes and the disturbances, every answer is the undisturbed one."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsv.kv.spec import KVGroup
from lsv.request.media import Media
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.request import FinishReason, Request, Status
from lsv.scheduler.limits import Limits
from lsv.scheduler.plan import StepResult
from lsv.scheduler.policy import Fcfs, Priority
from lsv_testing.fakes import drafts as fake_drafts
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.requests import GivenGroup, make_request
from lsv_testing.fakes.rig import FULL, Rig

GROUPS = {
    "full": FULL,
    "window": (KVGroup(0, "window", (0,), 1, window=7),),
    "hybrid": (KVGroup(0, "full", (0,), 1), KVGroup(1, "window", (1,), 1, window=5), KVGroup(2, "latent", (2,), 1)),
    "state": (KVGroup(0, "state", (0,), 0, window=2, state_bytes=8),),
    "states beside tokens": (
        KVGroup(0, "full", (0,), 1),
        *(KVGroup(index, "state", (index,), 0, window=2, state_bytes=8) for index in (1, 2)),
    ),
    "cross": (KVGroup(0, "full", (0,), 1), *(KVGroup(index, "cross", (index,), 1, cross_len=9) for index in (1, 2))),
    "cross for some": (KVGroup(0, "full", (0,), 1), KVGroup(1, "cross", (1,), 1, cross_len=9, optional=True)),
    "cross and a window": (KVGroup(0, "window", (0,), 1, window=5), KVGroup(1, "cross", (1,), 1, cross_len=14)),
}


class Population:
    """Groups of requests of several tenants that arrive, share prefixes, are aborted and finished at random."""

    def __init__(self, seed: int, size: int, rig: Rig) -> None:
        self.rng = random.Random(seed)
        self.rig = rig
        self.coming = [self._group(4 * number) for number in range(size)]
        self.requests: dict[int, Request] = {}
        self.cut: dict[int, int] = {}

    def _group(self, id: int) -> GivenGroup:
        """One to three sequences."""
        rng, room = self.rng, self.rig.scheduler.longest - 1
        common = [range(start, start + 40) for start in (0, 50)]
        prompt = (*rng.choice(common)[: rng.randint(0, 20)], *(rng.randrange(90) for _ in range(rng.randint(1, 12))))
        prompt = prompt[: min(room, len(prompt))]
        shared = {
            "priority": rng.randrange(3), "salt": rng.choice([b"", b"", b"x"]), "arrival": float(id),
            "tenant": rng.choice(["", "", "a", "b"]), "weight": rng.choice([1.0, 2.5]),
        }  # fmt: skip
        if self.rig.kv.cross_len is not None:
            count = rng.choice([3, self.rig.kv.cross_len])
            shared["media"] = (Media(bytes([rng.randrange(2), count]) * 16, "audio", 0, count, cross=True),)
            if self.rig.kv.groups[-1].optional:
                start = rng.randrange(len(prompt))
                items = (msgspec.structs.replace(item, start=start) for item in shared["media"])
                shared["media"] = tuple(items) if rng.random() < 0.5 else ()
        if rng.random() < 0.1:
            return GivenGroup(make_request(id, prompt, pooling=PoolingParams(), **shared))
        sampling = SamplingParams(
            n=rng.choice([1, 1, 3]),
            max_tokens=rng.choice([1, 2, 8, 20, None]),
            prompt_logprobs=0 if rng.random() < 0.1 else None,
        )
        stop_ids = tuple(rng.sample(range(fake_tokens.VOCABULARY), 2))
        return GivenGroup(
            *(
                make_request(id + index, prompt, index=index, sampling=sampling, stop_ids=stop_ids, **shared)
                for index in range(sampling.n)
            )
        )

    def disturb(self) -> None:
        """Between two steps: some arrive, one may leave early."""
        for _ in range(min(len(self.coming), self.rng.choice([0, 0, 1, 3]))):
            group = self.coming.pop()
            self.rig.scheduler.add(group, self.rig.clock())
            self.requests |= {request.id: request for request in group.requests}
        alive = [one for one in self.requests.values() if one.status is not Status.FINISHED]
        if not alive or self.rng.random() > 0.1:
            return
        one = self.rng.choice(alive)
        if one.output and self.rng.random() < 0.5:
            self.cut[one.id] = self.rng.randint(1, len(one.output))
            outcome = self.rig.scheduler.finish(one.id, self.cut[one.id], FinishReason.STOP)
            assert outcome is not None
            self.rig.note([outcome])
        else:
            self.rig.note(self.rig.scheduler.abort([one.group]))

    def run(self) -> None:
        while self.coming or self.rig.scheduler.has_work or self.rig.scheduler.in_flight:
            self.rig.run(self.disturb)

    def check(self) -> None:
        for request in self.requests.values():
            assert request.status is Status.FINISHED
            assert request.preemptions <= self.rig.limits.max_preemptions
            *before, last = self.rig.news[request.id]
            assert last.finish is not None
            assert all(news.finish is None for news in before)
            if request.pooling is None:
                self._check_answer(request, last.finish)
            elif last.finish is not FinishReason.ABORT:
                read = fake_tokens.seen(request.prompt, request.media)
                assert last.vector == fake_tokens.vector(fake_tokens.states(read)[-1])
        assert self.rig.kv.usage == 0
        assert self.rig.kv.unreserved == self.rig.kv.num_blocks

    def _check_answer(self, request: Request, finish: FinishReason) -> None:
        expected = fake_tokens.expected_output(request, self.rig.scheduler.longest)
        told = self.rig.tokens(request.id)
        if finish is FinishReason.ABORT or request.id in self.cut:
            assert told == expected[: len(told)]
            assert request.output == told[: self.cut.get(request.id)]
        else:
            assert told == request.output == expected
            self._check_scores(request)

    def _check_scores(self, request: Request) -> None:
        if request.sampling.prompt_logprobs is None:
            return
        scores = [news.prompt_logprobs for news in self.rig.news[request.id] if news.prompt_logprobs is not None]
        assert [ids[0] for score in scores for ids in score.ids] == list(request.prompt[1:])


def give_times(rig: Rig, seed: int) -> None:
    """Let steps take a millisecond or so a token."""
    rng, collect = random.Random(seed), rig.worker.collect

    def late(timeout: float) -> StepResult:
        result = collect(timeout)
        return msgspec.structs.replace(result, seconds=rng.uniform(0.0005, 0.002) * sum(result.kept))

    rig.worker.collect = late


def run_population(
    seed: int, size: int, *, depth: int, groups: str, blocks: int, tokens: int, seqs: int, chunked: bool, mixed: bool,
    caching: bool, policy: type[Fcfs], most_preempted: int, max_itl: float | None = None,
    drafts: int = 0, adaptive: bool = False,
) -> Rig:  # fmt: skip
    limits = Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens if chunked else max(tokens, 48),
        max_model_len=48,
        depth=depth,
        chunked_prefill=chunked,
        mixed_batches=mixed,
        max_preemptions=most_preempted,
        max_itl=max_itl,
        encoder_tokens=20,
        encoder_parts=1 + seed % 3,
        drafts=drafts,
        adaptive_drafts=adaptive,
    )
    rig = Rig(
        groups=GROUPS[groups],
        num_blocks=blocks,
        block_size=4,
        prefix_caching=caching,
        policy=policy(),
        limits=limits,
        draft=fake_drafts.mixed(seed),
    )
    if max_itl is not None or adaptive:
        give_times(rig, seed)
    population = Population(seed, size, rig)
    population.run()
    population.check()
    return rig


WORLDS = {
    "depth": st.sampled_from([1, 2, 4]),
    "groups": st.sampled_from(list(GROUPS)),
    "blocks": st.integers(12, 60),
    "tokens": st.integers(3, 40),
    "seqs": st.integers(1, 8),
    "chunked": st.booleans(),
    "mixed": st.booleans(),
    "caching": st.booleans(),
    "policy": st.sampled_from([Fcfs, Priority]),
    "most_preempted": st.sampled_from([0, 1, 3]),
    "max_itl": st.sampled_from([None, None, 0.02]),
    "drafts": st.sampled_from([0, 1, 5]),
    "adaptive": st.booleans(),
}
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@pytest.mark.machine
@given(seed=st.integers(0, 1 << 20), **WORLDS)
@settings(max_examples=300, **QUIET)
def test_any_population_in_any_world(seed, **world):
    run_population(seed, 12, **world)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(seed=st.integers(0, 1 << 20), **WORLDS)
@settings(max_examples=1500, **QUIET)
def test_many_populations_in_many_worlds(seed, **world):
    run_population(seed, 30, **world)


def test_a_step_may_only_begin_a_request():
    """Its media find no room beside those of others, none of whose rows can be planned just then."""
    run_population(
        52, 30, depth=2, groups="cross and a window", blocks=18, tokens=3, seqs=3, chunked=False, mixed=False,
        caching=True, policy=Fcfs, most_preempted=1, drafts=1,
    )  # fmt: skip


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("groups", list(GROUPS))
def test_crowded_cache(depth, groups):
    rig = run_population(
        7, 30, depth=depth, groups=groups, blocks=45, tokens=12, seqs=8, chunked=True, mixed=True,
        caching=True, policy=Fcfs, most_preempted=3,
    )  # fmt: skip
    assert rig.scheduler.counts.prefix_hits > 0
