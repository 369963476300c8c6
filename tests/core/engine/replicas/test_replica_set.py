"""Several engines behind one client: where requests go, what one replica's death costs, and orders to all."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
import pytest

from lsv.config import AdapterOptions, Topology
from lsv.engine.client import EngineStatus, Vector
from lsv.engine.messages import Stats
from lsv.engine.orders.adapters import LoadAdapter, UnloadAdapter
from lsv.engine.orders.order import Order, ResetPrefixCache
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.replicas.totals import add_stats
from lsv.request.adapter import Adapter
from lsv.request.outputs import Chunk
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.scheduler.outcome import OffloadCounts
from lsv_base.errors import BadRequest, EngineDied, ModelNotFound, Overloaded, Unavailable
from lsv_testing.fakes.client import FakeClient, fake_config

LOADING = EngineStatus(state="loading", stage="weights", done=1, total=4)
READY = EngineStatus(state="ready")
DOWN = EngineStatus(state="loading", stage="restarting", error="it was killed")
DEAD = EngineStatus(state="dead", error="it was killed")


class FakeReplica(FakeClient):
    """A client of an engine that tests tell what has become of it."""

    def __init__(self, number: int, count: int, **changes: Any) -> None:
        super().__init__(fake_config(topology=Topology(data=count, replica=number), **changes))
        self.address = f"/socket/{number}"
        self.failure = None
        self.is_lost = False
        self.watchers: list[Callable[[], None]] = []
        self.orders: list[Order] = []
        self.refuses: Exception | None = None
        self.drained = 0.0

    async def start(self) -> None: ...

    def generate(self, request: RequestSpec, **_: Any) -> AsyncGenerator[Chunk, None]:
        return super().generate(request)

    async def encode(self, request: RequestSpec, **_: Any) -> list[Vector]:
        return await super().encode(request)

    def watch(self, callback: Callable[[], None]) -> None:
        self.watchers.append(callback)

    def become(self, status: EngineStatus) -> None:
        self.status = status
        for callback in self.watchers:
            callback()

    async def order(self, order: Order) -> None:
        if isinstance(order, LoadAdapter) and self.refuses is not None:
            raise self.refuses
        if isinstance(order, UnloadAdapter) and all(one.name != order.name for one in self.adapters):
            raise ModelNotFound(f"there is no adapter {order.name}")
        await super().order(order)

    async def close(self, *, drain: float = 0.0) -> None:
        self.drained = drain
        self.become(EngineStatus(state="dead", error="closed"))


def replicas(count: int = 2, **changes: Any) -> tuple[ReplicaSet, list[FakeReplica]]:
    """A set whose engines are ready."""
    fakes = [FakeReplica(number, count, **changes) for number in range(count)]
    found = ReplicaSet(fakes)  # type: ignore[arg-type]
    for fake in fakes:
        fake.become(READY)
    return found, fakes


def request(*ids: int, **changes: Any) -> RequestSpec:
    return RequestSpec(
        prompts=(Prompt(ids or (1, 2, 3)),), sampling=SamplingParams(max_tokens=8), request_id="r", **changes
    )


async def answer(found: ReplicaSet, spec: RequestSpec) -> str:
    return "".join([chunk.text async for chunk in found.generate(spec)])


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


# Where requests go


async def test_requests_that_run_at_once_are_spread():
    found, fakes = replicas(3)
    for fake in fakes:
        fake.gate.clear()
    running = [asyncio.create_task(answer(found, request(n))) for n in range(9)]
    await settle()
    assert [len(fake.requests) for fake in fakes] == [3, 3, 3]
    for fake in fakes:
        fake.gate.set()
    assert await asyncio.gather(*running) == ["Hello, w"] * 9


async def test_a_conversation_stays_where_its_beginning_is():
    found, fakes = replicas(3)
    sizes: Counter[int] = Counter()
    for turn in range(1, 5):
        for user in range(6):
            await answer(found, request(*([user + 1] * 64 * turn)))
    for number, fake in enumerate(fakes):
        users = {spec.prompt.ids[0] for spec in fake.requests}
        sizes[number] = len(users)
        assert len(fake.requests) == 4 * len(users), "all turns of each user were here"
    assert sum(sizes.values()) == 6
    assert set(sizes.values()) == {2}


async def test_without_a_prefix_cache_only_queues_count():
    found, fakes = replicas(2, prefix_caching=False)
    for _ in range(4):
        await answer(found, request(*range(1, 200)))
    assert [len(fake.requests) for fake in fakes] == [2, 2]


async def test_one_that_refuses_for_a_while_is_asked_again(monkeypatch: pytest.MonkeyPatch):
    """It was about to sleep, say, and could not."""
    now = time.monotonic()
    monkeypatch.setattr("lsv.engine.replicas.replica.time.monotonic", lambda: now)
    found, fakes = replicas(2)
    fakes[0].failure = Unavailable("about to sleep")
    await answer(found, request())
    fakes[0].failure = None
    asked = len(fakes[0].requests)
    await answer(found, request())
    assert len(fakes[0].requests) == asked, "not at once"
    now += 2.0
    for _ in range(2):
        await answer(found, request())
    assert len(fakes[0].requests) == asked + 1


async def test_what_an_engine_reports_counts_too():
    """Other API processes send requests to it as well."""
    found, fakes = replicas(2)
    fakes[0].stats = Stats(running=4, waiting=2)
    for _ in range(4):
        await answer(found, request())
    assert [len(fake.requests) for fake in fakes] == [0, 4]


async def test_the_cache_of_a_replica_that_is_back_is_empty():
    found, fakes = replicas(2)
    await answer(found, request(*range(1, 200)))
    fakes[0].become(DOWN)
    fakes[0].become(READY)
    fakes[0].stats = Stats(running=1)
    await answer(found, request(*range(1, 200)))
    assert [len(fake.requests) for fake in fakes] == [1, 1]


async def test_an_abort_reaches_the_replica_that_answers():
    found, fakes = replicas(2)
    chunks = found.generate(request())
    await anext(chunks)
    await chunks.aclose()
    assert [len(fake.aborted) for fake in fakes] == [1, 0]
    for fake in fakes:
        fake.gate.clear()
    cancelled = asyncio.create_task(answer(found, request()))
    await settle()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert [len(fake.aborted) for fake in fakes] == [1, 1]


async def test_vectors_come_from_any_replica():
    found, fakes = replicas(2)
    spec = RequestSpec(prompts=(Prompt((1, 2)),), pooling=PoolingParams(), request_id="r")
    for fake in fakes:
        fake.config = msgspec.structs.replace(
            fake.config, pooler=msgspec.structs.replace(fake.config.pooler, task="embed")
        )
    assert [await found.encode(spec) for _ in range(2)] == [[(2.0, 2.0, 0.5)]] * 2
    assert [len(fake.requests) for fake in fakes] == [1, 1]


# Replicas that are lost


@pytest.mark.parametrize("tokens", [0, 1])
async def test_a_death_fails_the_requests_it_had_and_no_other(tokens: int):
    found, fakes = replicas(2)
    for fake in fakes:
        fake.gate.clear()
    running = [asyncio.create_task(answer(found, request(n))) for n in range(4)]
    await settle()
    fakes[1].failure, fakes[1].fail_after = EngineDied("it was killed"), tokens
    fakes[1].become(DOWN)
    for fake in fakes:
        fake.gate.set()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert sorted(map(str, ends)) == ["Hello, w", "Hello, w", "it was killed", "it was killed"]
    assert found.status.state == "ready"
    assert found.status.error == "replica 1: it was killed"
    assert [await answer(found, request()) for _ in range(4)] == ["Hello, w"] * 4
    assert len(fakes[1].requests) == 2, "nothing was tried again, and nothing new was sent"
    fakes[1].failure = None
    fakes[1].become(READY)
    assert found.status == READY
    await answer(found, request())
    assert len(fakes[1].requests) == 3, "it is taken back"


@pytest.mark.parametrize("refusal", [Unavailable("it drains"), Overloaded("its queue is full")])
async def test_what_a_replica_refuses_another_one_takes(refusal):
    found, fakes = replicas(2)
    fakes[0].failure = refusal
    assert [await answer(found, request()) for _ in range(3)] == ["Hello, w"] * 3
    drains = isinstance(refusal, Unavailable)
    assert len(fakes[0].requests) == (1 if drains else 3), "one that drains is not asked again"
    fakes[1].failure = refusal
    with pytest.raises(type(refusal)):
        await answer(found, request())
    fakes[0].failure = fakes[1].failure = None
    for fake in fakes:
        fake.become(DOWN)
        fake.become(READY)
    assert await answer(found, request()) == "Hello, w"


async def test_wrong_requests_are_refused_once():
    found, fakes = replicas(2)
    with pytest.raises(BadRequest):
        await answer(found, request(*[-1] * 20))
    assert [len(fake.requests) for fake in fakes] == [0, 0]
    assert await answer(found, request()) == "Hello, w"


async def test_without_any_replica_requests_are_refused():
    found, fakes = replicas(2)
    for fake in fakes:
        fake.become(DOWN)
    with pytest.raises(Unavailable, match="restarting"):
        await answer(found, request())
    for fake in fakes:
        fake.become(DEAD)
    with pytest.raises(EngineDied, match="replica 0: it was killed"):
        await answer(found, request())


# What they are together


async def test_it_is_ready_once_all_were_and_while_one_is():
    fakes = [FakeReplica(number, 2) for number in range(2)]
    for fake in fakes:
        fake.status = LOADING
    found = ReplicaSet(fakes)  # type: ignore[arg-type]
    waiting = asyncio.create_task(found.ready())
    fakes[0].become(READY)
    await settle()
    assert found.status == EngineStatus(state="loading", stage="replica 1: weights", done=1, total=4)
    assert not waiting.done()
    fakes[1].become(READY)
    assert (await waiting).num_blocks == 64
    fakes[0].become(DEAD)
    assert found.status.state == "ready"
    fakes[1].become(DOWN)
    assert (found.status.state, found.status.stage) == ("loading", "replica 1: restarting")
    fakes[1].become(DEAD)
    assert found.status.state == "dead"


async def test_nobody_waits_for_one_that_is_lost():
    """It had served before this set was made."""
    fakes = [FakeReplica(number, 3) for number in range(3)]
    for fake in fakes:
        fake.status = LOADING
    found = ReplicaSet(fakes)  # type: ignore[arg-type]
    fakes[2].is_lost = True
    fakes[2].become(DEAD)
    assert found.status.state == "loading"
    fakes[0].become(READY)
    assert found.status.state == "loading", "another one has not been ready yet"
    fakes[1].become(READY)
    assert found.status == EngineStatus(state="ready", error="replica 2: it was killed")
    fakes[1].become(DOWN)
    assert found.status.state == "ready", "all that count were ready"


async def test_one_that_can_not_start_is_a_failed_start():
    fakes = [FakeReplica(number, 2) for number in range(2)]
    fakes[1].status = LOADING
    found = ReplicaSet(fakes)  # type: ignore[arg-type]
    fakes[0].become(READY)
    fakes[1].failure = BadRequest("no memory")
    fakes[1].become(DEAD)
    assert found.status.state == "dead"
    with pytest.raises(BadRequest, match="no memory"):
        await found.ready()


async def test_reports_are_added_up():
    found, fakes = replicas(2)
    fakes[0].stats = Stats(running=2, kv_usage=0.5, steps_total=7, step_tokens=(1, 2))
    fakes[1].stats = Stats(running=1, kv_usage=0.25, steps_total=1)
    assert found.stats == Stats(running=3, kv_usage=0.375, steps_total=8, step_tokens=(1, 2))


async def test_the_shortest_context_bounds_requests():
    found, fakes = replicas(2)
    assert fakes[1].fit is not None
    fakes[1].fit = msgspec.structs.replace(fakes[1].fit, max_model_len=100)
    assert found.admission.max_model_len == 100


async def test_every_request_is_reported_once():
    found, _ = replicas(2)
    ended: list[str] = []
    found.on_finished(lambda record: ended.append(record.request_id))
    for _ in range(3):
        await answer(found, request())
    assert ended == ["r"] * 3


# Orders to all


async def test_all_forget_their_prefixes():
    found, fakes = replicas(2)
    await answer(found, request(*range(1, 200)))
    await found.order(ResetPrefixCache())
    assert [fake.orders for fake in fakes] == [[ResetPrefixCache()]] * 2
    fakes[0].stats = Stats(running=1)
    await answer(found, request(*range(1, 200)))
    assert len(fakes[1].requests) == 1, "the first one holds nothing any more"


async def test_adapters_are_loaded_everywhere_or_nowhere():
    found, fakes = replicas(2)
    await found.order(LoadAdapter("a", "/a"))
    assert [one.name for one in found.adapters] == ["a"]
    await found.order(UnloadAdapter("a"))
    assert found.adapters == ()
    with pytest.raises(ModelNotFound):
        await found.order(UnloadAdapter("a"))
    fakes[1].refuses = BadRequest("too large a rank")
    with pytest.raises(BadRequest, match="rank"):
        await found.order(LoadAdapter("a", "/a"))
    assert found.adapters == ()


async def test_what_can_not_be_replaced_everywhere_stays_as_it_was():
    found, fakes = replicas(2, adapters=AdapterOptions())
    await found.order(LoadAdapter("a", "/old"))
    fakes[1].refuses = BadRequest("there is no such folder")
    with pytest.raises(BadRequest, match="no such folder"):
        await found.order(LoadAdapter("a", "/new", replace=True))
    assert [[one.path for one in fake.adapters] for fake in fakes] == [["/old"], ["/old"]]


async def test_one_that_is_back_serves_no_adapter_that_was_replaced_meanwhile():
    """It begins with what the server was started with."""
    found, fakes = replicas(2, adapters=AdapterOptions())
    await settle()
    await found.order(LoadAdapter("a", "/old"))
    fakes[1].become(DOWN)
    await found.order(LoadAdapter("a", "/new", replace=True))
    fakes[1].become(READY)
    assert [one.path for one in fakes[1].adapters] == ["/old"]
    for _ in range(3):
        await answer(found, request(adapter="a"))
    await settle()
    assert [one.path for one in fakes[1].adapters] == ["/new"]


async def test_one_that_is_back_gets_the_adapters_of_the_others():
    found, fakes = replicas(2, adapters=AdapterOptions())
    await found.order(LoadAdapter("a", "/a"))
    await found.order(LoadAdapter("b", "/b"))
    fakes[1].become(DOWN)
    fakes[1].adapters = (Adapter(1, "gone", "/gone", b""), Adapter(2, "b", "/old", b"/old"))
    fakes[1].status = READY
    await answer(found, request(adapter="a"))
    assert len(fakes[1].requests) == 0, "it has no such adapter yet"
    fakes[1].become(READY)
    await settle()
    assert {one.name: one.path for one in fakes[1].adapters} == {"a": "/a", "b": "/b"}
    await answer(found, request(adapter="a"))
    assert len(fakes[1].requests) == 1


async def test_all_drain_at_once_when_it_is_closed():
    found, fakes = replicas(2)
    await found.close(drain=3.0)
    assert [fake.drained for fake in fakes] == [3.0, 3.0]
    assert found.status.state == "dead"


def test_what_is_behind_the_caches_of_replicas_adds_up():
    several = [Stats(offload=OffloadCounts(10, 4, 0.5)), Stats(offload=OffloadCounts(2, 1, 0.1)), Stats()]
    total = add_stats(several).offload
    assert total is not None
    assert (total.queries, total.hits, total.usage) == (12, 5, pytest.approx(0.3))
    assert add_stats([Stats(), Stats()]).offload is None
