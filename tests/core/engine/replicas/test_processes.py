"""Two engine processes over fake workers behind one client: one is killed under load and comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lsv.config import Topology
from lsv.engine.orders.order import Drain
from lsv.engine.replicas.renewal import Renewal
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.replicas.supervisors import Supervisors
from lsv.engine.socket_client import SocketClient
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv.request.adapter import Adapter
from lsv.request.outputs import RequestRecord
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv_base.errors import EngineDied
from lsv_testing.fakes.engine import engine_config, install_plugin
from lsv_testing.fakes.requests import make_spec
from lsv_testing.fakes.text import letters
from lsv_testing.fakes.tokens import VOCABULARY

LONG = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
SHORT = LONG.replace(max_tokens=3)


@pytest.fixture
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ReplicaSet, Supervisors]]:
    install_plugin(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    config = engine_config(topology=Topology(data=2), options={"fake.delay": 0.01})
    supervisors = Supervisors(config.replicas(), restarts=lambda: RestartPolicy(1, 600.0))
    supervisors.start()
    tokenizer = letters(VOCABULARY)
    each = zip(config.replicas(), supervisors.addresses, strict=True)
    found = ReplicaSet([SocketClient(one, address, tokenizer) for one, address in each])
    await found.start()
    await found.ready()
    yield found, supervisors
    await found.close()
    await asyncio.to_thread(supervisors.stop)
    assert not any(address.exists() for address in supervisors.addresses)


async def count(client: ReplicaSet | SocketClient, params: SamplingParams, name: str) -> int:
    return sum([len(chunk.ids) async for chunk in client.generate(make_spec([1, 2, 3], params, request_id=name))])


async def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends, "it never came true"
        await asyncio.sleep(0.01)


async def test_one_that_is_killed_costs_its_requests_and_comes_back(running: tuple[ReplicaSet, Supervisors]) -> None:
    found, supervisors = running
    lost, stays = found.replicas[1], found.replicas[0]
    asked = [asyncio.create_task(count(found, LONG, f"r{number}")) for number in range(6)]
    await until(lambda: stays.stats.running == lost.stats.running == 3)
    lost.adapters = (Adapter(1, "of the last run", "/a", b""),)
    supervisors.replicas[1].process.kill()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(str(end) for end in ends) == ["150"] * 3 + ["the engine process was killed by signal 9"] * 3
    assert {type(end) for end in ends} == {int, EngineDied}
    assert found.status.state == "ready"
    assert [await count(found, SHORT, "meanwhile") for _ in range(3)] == [3] * 3
    await until(lambda: lost.status.state == "ready")
    assert lost.adapters == (), "nothing is left of the run before"
    assert (lost.stats.running, lost.stats.steps_total < 40) == (0, True)
    before = lost.stats.generation_tokens_total
    assert [await count(found, SHORT, "again") for _ in range(4)] == [3] * 4
    assert lost.stats.generation_tokens_total > before


async def test_replicas_are_replaced_one_by_one_and_no_request_is_lost(
    running: tuple[ReplicaSet, Supervisors],
) -> None:
    found, supervisors = running
    before = [one.process.pid for one in supervisors.replicas]
    renewal = Renewal(found.replicas, supervisors, drain=30.0)
    asked = [asyncio.create_task(count(found, LONG, f"r{number}")) for number in range(4)]
    await until(lambda: found.stats.running == 4)
    renewing = asyncio.create_task(renewal.run())
    while not renewing.done():
        assert await count(found, SHORT, "meanwhile") == 3
    await renewing
    assert await asyncio.gather(*asked) == [150] * 4
    assert not {one.process.pid for one in supervisors.replicas} & set(before)
    assert found.status.state == "ready"
    assert found.status.error is None


async def test_what_takes_too_long_to_drain_is_cut(running: tuple[ReplicaSet, Supervisors]) -> None:
    """Without any time for it, too, one after the other."""
    found, supervisors = running
    before = [one.process.pid for one in supervisors.replicas]
    asked = [asyncio.create_task(count(found, LONG, f"r{number}")) for number in range(2)]
    await until(lambda: found.stats.running == 2)
    states: set[tuple[str, ...]] = set()
    for client in found.replicas:
        client.watch(lambda: states.add(tuple(client.status.state for client in found.replicas)))
    await Renewal(found.replicas, supervisors, drain=0.0).run()
    assert all("ready" in each for each in states), "the others answered"
    assert not {one.process.pid for one in supervisors.replicas} & set(before)
    assert {type(end) for end in await asyncio.gather(*asked, return_exceptions=True)} <= {EngineDied, int}
    assert await count(found, SHORT, "again") == 3


async def test_a_request_that_is_tried_twice_is_reported_once(running: tuple[ReplicaSet, Supervisors]) -> None:
    found, _ = running
    records: list[RequestRecord] = []
    found.on_finished(records.append)
    other = SocketClient(found.config, found.addresses[0], found.tokenizer)
    await other.start()
    await other.ready()
    still = asyncio.create_task(count(other, LONG, "others"))
    await until(lambda: other.stats.running == 1)
    draining = asyncio.create_task(other.order(Drain()))  # which the first hears of when it is refused
    await asyncio.sleep(0)
    assert [await count(found, SHORT, f"r{number}") for number in range(3)] == [3] * 3
    assert [(one.request_id, one.finish) for one in records] == [(f"r{n}", FinishReason.LENGTH) for n in range(3)]
    assert await still == 150
    await draining
    await other.close()


async def test_a_client_hears_at_once_what_an_engine_has_done(running: tuple[ReplicaSet, Supervisors]) -> None:
    found, supervisors = running
    assert await count(found, SHORT, "r") == 3
    other = SocketClient(found.config, supervisors.addresses[0], found.tokenizer)
    await other.start()
    await other.ready()
    await until(lambda: other.stats.generation_tokens_total == 3)
    await other.close()
