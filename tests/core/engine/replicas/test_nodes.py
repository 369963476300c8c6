"""A replica beside its client and one on another machine, which is a process here: over fake workers and loopback."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lsv.config import EngineConfig, ReplicaNodes, Topology
from lsv.engine.orders.order import Drain, ResetPrefixCache
from lsv.engine.replicas.nodes.messages import Enlist, Goodbye
from lsv.engine.replicas.nodes.stand_in import StandIn
from lsv.engine.replicas.renewal import Renewal
from lsv.engine.supervision import state
from lsv.engine.supervision.state import Supervision
from lsv.processes.nodes.handshake import JOINING, introduce
from lsv_base.errors import ConfigError, EngineDied, StartError
from lsv_base.processes.wire import Channel, Failed
from lsv_testing.fakes.engine import engine_config, install_plugin
from suite.processes import children_of

from .conftest import LONG, SHORT, answer, states, until
from .machines import HERE, KEY, engine_of, find_port, head, node, words

pytestmark = pytest.mark.xdist_group("replica_nodes")


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("LSV_CLUSTER_KEY", KEY)


@pytest.fixture
def config() -> EngineConfig:
    """Of the first machine."""
    nodes = ReplicaNodes(headless=False, address=HERE, port=find_port(), patience=30.0)
    return engine_config(topology=Topology(data=2, local=(0, 1)), replica_nodes=nodes, options={"fake.delay": 0.01})


@pytest.fixture
def bare(config: EngineConfig) -> EngineConfig:
    """Of one that only serves."""
    return msgspec.structs.replace(config, topology=Topology(data=1, local=(0, 0)))


@pytest.mark.row("F-281", "F-569")
async def test_requests_go_to_both_machines_and_the_answers_are_the_same(config: EngineConfig) -> None:
    with node(config) as other:
        async with head(config) as found:
            await found.client.ready()
            near, far = found.client.replicas
            expected = await answer(near, SHORT)
            assert len(expected) == 8
            assert await answer(far, SHORT) == expected
            before = far.stats.generation_tokens_total
            assert await asyncio.gather(*(answer(found.client, SHORT, f"r{n}") for n in range(6))) == [expected] * 6
            assert min(near.stats.generation_tokens_total, far.stats.generation_tokens_total) > before
            await found.client.order(ResetPrefixCache())
            hits = [one.stats.prefix_hits_total for one in (near, far)]
            for _ in range(3):
                for first in (10, 50):
                    await answer(found.client, SHORT, ids=range(first, first + 41))
            assert [one.stats.prefix_hits_total for one in (near, far)] == [before + 2 * 40 for before in hits]
        said = await words(other)
    assert other.returncode == 0, said
    assert "node 0 has ended" in said


async def test_a_machine_that_is_lost_costs_its_requests_alone_and_is_taken_back(config: EngineConfig) -> None:
    async with head(config) as found:
        near, far = found.client.replicas
        with node(config) as other:
            await found.client.ready()
            asked = [asyncio.create_task(answer(found.client, LONG, f"r{number}")) for number in range(6)]
            await until(lambda: near.stats.running == far.stats.running == 3)
            other.kill()
            ends = await asyncio.gather(*asked, return_exceptions=True)
        lost = [end for end in ends if not isinstance(end, list)]
        assert {type(end) for end in lost} == {EngineDied}
        assert {str(end) for end in lost} == {"the node at 127.0.0.1 with replica 1 is lost"}
        assert [len(end) for end in ends if isinstance(end, list)] == [150] * 3
        assert found.client.status.state == "ready"
        assert found.client.status.error == "replica 1: the node at 127.0.0.1 with replica 1 is lost"
        assert far.status.state == "loading"
        assert [len(await answer(found.client, SHORT)) for _ in range(3)] == [8] * 3
        with node(config):
            await until(lambda: far.status.state == "ready")
            assert found.client.status.error is None
            assert len(await answer(far, SHORT)) == 8


async def test_an_engine_that_dies_elsewhere_is_started_again_there(bare: EngineConfig) -> None:
    with node(bare, restarts=1) as other:
        async with head(bare) as found:
            await found.client.ready()
            far = found.client.replicas[0]
            asked = asyncio.create_task(answer(far, LONG))
            await until(lambda: far.stats.running == 1)
            os.kill(engine_of(other), signal.SIGKILL)
            with pytest.raises(EngineDied, match="the engine process was killed by signal 9"):
                await asked
            await until(lambda: far.status.state == "ready")
            assert len(await answer(far, SHORT)) == 8
            os.kill(engine_of(other), signal.SIGKILL)
            said = await words(other)
            assert other.returncode == 1, said
            await until(lambda: "has ended: the engine process was killed" in (far.status.error or ""))
            assert far.status.state == "loading", "its machine may come back"


@pytest.mark.slow
async def test_replicas_on_all_machines_are_replaced_and_no_request_is_lost(config: EngineConfig) -> None:
    with node(config) as other:
        async with head(config) as found:
            await found.client.ready()
            before = engine_of(other)
            asked = [asyncio.create_task(answer(found.client, LONG, f"r{number}")) for number in range(4)]
            await until(lambda: found.client.stats.running == 4)
            await Renewal(found.client.replicas, found.supervisors, drain=30.0).run()
            assert [len(each) for each in await asyncio.gather(*asked)] == [150] * 4
            assert engine_of(other) != before
            assert found.client.status.state == "ready"


async def test_a_machine_that_is_told_to_end_lets_its_requests_end(config: EngineConfig) -> None:
    async with head(config) as found:
        with node(config) as other:
            await found.client.ready()
            far = found.client.replicas[1]
            asked = asyncio.create_task(answer(far, LONG))
            await until(lambda: far.stats.running == 1)
            other.send_signal(signal.SIGTERM)
            assert len(await asked) == 150
            said = await words(other)
        assert other.returncode == 0, said
        await until(lambda: far.status.state == "loading")
        assert far.status.error == "the node at 127.0.0.1 with replica 1 has left"
        assert len(await answer(found.client, SHORT)) == 8


async def test_engines_outlive_a_server_that_is_lost_and_serve_the_next(config: EngineConfig) -> None:
    """One that was about to end has told them to take no requests any more."""
    with node(config, restarts=3) as other:
        async with head(config) as found:
            await found.client.ready()
            first = engine_of(other)
            await found.client.replicas[1].order(Drain())
            for host in found.reception._hosts:
                host.line.close()  # as if the process were killed: nobody says goodbye
        async with head(config) as found:
            await found.client.ready()
            assert len(await answer(found.client.replicas[1], SHORT)) == 8
            assert engine_of(other) == first


async def test_an_engine_that_is_lost_for_good_keeps_no_server_waiting(config: EngineConfig) -> None:
    """Its machine goes on with another one: neither this server nor the next waits for it, until the machine is new."""
    config = msgspec.structs.replace(config, topology=Topology(data=3, local=(0, 1)))
    gone = "the engine process was killed by signal 9"
    with node(config, restarts=1) as other:
        async with head(config) as found:
            await found.client.ready()
            kept = set(children_of(other.pid))
            os.kill(min(kept), signal.SIGKILL)
            await until(lambda: len(states(found.client) - {"ready"}) == 1)
            await until(lambda: states(found.client) == {"ready"} and len(children_of(other.pid)) == 2)
            (again,) = set(children_of(other.pid)) - kept
            os.kill(again, signal.SIGKILL)
            await until(lambda: "dead" in states(found.client))
            assert found.client.status.state == "ready"
            assert gone in (found.client.status.error or "")
            assert [len(await answer(found.client, SHORT)) for _ in range(3)] == [8] * 3
            for host in found.reception._hosts:
                host.line.close()  # as if the process were killed: nobody says goodbye
        async with head(config) as found:
            await found.client.ready()
            await until(lambda: sorted(one.status.state for one in found.client.replicas) == ["dead", "ready", "ready"])
            assert gone in (found.client.status.error or "")
            other.kill()
            await until(lambda: states(found.client) == {"ready", "loading"})
            with node(config):
                await until(lambda: states(found.client) == {"ready"})
                assert found.client.status.error is None


@pytest.mark.parametrize(
    ("theirs", "problem"),
    [
        ({"max_model_len": 128}, "max_model_len is 256 here and 128 there: start both with the same options"),
        (
            {"topology": Topology(data=3, local=(1, 2))},
            "topology.data is 2 here and 3 there: start both with the same options",
        ),
        (
            {"topology": Topology(data=2, local=(0, 1))},
            "replica 0 is not among those of other machines, replica 1: see --data-parallel-start-rank and ",
        ),
    ],
)
async def test_what_does_not_fit_is_refused_on_both_sides(
    config: EngineConfig, theirs: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with head(config) as found:
        with node(config, **theirs) as other:
            said = await words(other)
        assert other.returncode == 1
        assert "and node 0 don't fit together: " in said
        assert problem in said
        assert problem in caplog.text
        assert found.client.status.state == "loading"


async def test_another_key_is_told_on_both_sides(bare: EngineConfig, caplog: pytest.LogCaptureFixture) -> None:
    async with head(bare):
        with node(bare, key="another secret of theirs") as other:
            assert "has another LSV_CLUSTER_KEY" in await words(other)
        assert "127.0.0.1 was turned away: it has another LSV_CLUSTER_KEY" in caplog.text


@pytest.mark.slow
async def test_a_second_machine_with_the_same_replicas_waits_for_the_end_of_the_first(bare: EngineConfig) -> None:
    async with head(bare) as found:
        with node(bare) as first, node(bare) as second:
            await found.client.ready()
            one, other = (first, second) if children_of(first.pid) else (second, first)
            assert not children_of(other.pid)
            one.kill()
            await until(lambda: found.client.replicas[0].status.state == "loading")
            await until(lambda: found.client.replicas[0].status.state == "ready")
            assert children_of(other.pid)


async def test_a_server_does_not_wait_for_ever(bare: EngineConfig) -> None:
    assert bare.replica_nodes is not None
    short = msgspec.structs.replace(bare.replica_nodes, patience=0.1)
    async with head(msgspec.structs.replace(bare, replica_nodes=short)) as found:
        with pytest.raises(StartError, match=r"no word from replica 0 after 0\.1 s \(node_timeout\): start the same"):
            await found.client.ready()


async def test_an_engine_elsewhere_that_can_not_start_ends_the_server(bare: EngineConfig) -> None:
    with node(bare, options={"fake.start_error": "no room"}) as other:
        async with head(bare) as found:
            with pytest.raises(ConfigError, match="no room"):
                await found.client.ready()
            assert "no room" in await words(other)


async def test_strangers_and_nonsense_keep_nobody_waiting(bare: EngineConfig) -> None:
    assert bare.replica_nodes is not None
    where = bare.replica_nodes.address, bare.replica_nodes.port
    async with head(bare) as found:
        silent = [socket.create_connection(where) for _ in range(4)]
        known = [await asyncio.to_thread(connect, where, JOINING) for _ in range(3)]
        known[0].sendall(b"\xff" * 64)  # a frame that is too long
        known[1].close()
        for purpose in (0, 7):  # nobody waits for this one, and there is no other
            with await asyncio.to_thread(connect, where, purpose) as end:
                end.settimeout(10)
                assert await asyncio.to_thread(end.recv, 1) == b""
        with node(bare):
            await found.client.ready()
        for end in (*silent, *known):
            end.close()


def connect(where: tuple[str, int], purpose: int) -> socket.socket:
    end = socket.create_connection(where, 10)
    introduce(end, KEY.encode(), purpose)
    return end


async def test_another_version_is_named(bare: EngineConfig) -> None:
    assert bare.replica_nodes is not None
    where = bare.replica_nodes.address, bare.replica_nodes.port
    async with head(bare):
        channel: Channel[Enlist, Goodbye | Failed] = Channel(
            await asyncio.to_thread(connect, where, JOINING), Goodbye | Failed
        )
        channel.send(Enlist(version="0.0", config=b"", checkpoint="", first=1, count=1))
        told = await asyncio.to_thread(channel.receive, 10)
        channel.close()
    assert isinstance(told, Failed)
    assert "lsv 0.0 there and " in told.error.message


async def test_an_engine_that_has_never_served_is_given_up() -> None:
    found = StandIn(1)
    error = StartError("no room").record()
    try:
        found.attach(lambda message: None)
        found.tell(Supervision("ended", 1, error), goes_on=True)
        found.detach(EngineDied("lost"))
        assert state.read(found.address) == Supervision("ended", 0, error), "clients do not look again"
    finally:
        found.stop()


async def test_a_stand_in_tells_clients_what_its_machine_says() -> None:
    found = StandIn(1)
    error = EngineDied("killed").record()
    try:
        assert state.read(found.address).state == "down"
        found.attach(lambda message: None)
        found.tell(Supervision("running", 4), goes_on=True)
        assert state.read(found.address) == Supervision("running", 1)
        found.tell(Supervision("down", 4, error), goes_on=True)
        found.tell(Supervision("running", 5), goes_on=True)
        assert state.read(found.address) == Supervision("running", 2)
        found.tell(Supervision("ended", 5, error, served=True), goes_on=True)
        assert state.read(found.address) == Supervision("lost", 2, error), "its machine goes on without it"
        found.tell(Supervision("ended", 5, error, served=True), goes_on=False)
        assert state.read(found.address) == Supervision("down", 2, error), "its machine may come back"
        found.detach(EngineDied("lost"))
        found.attach(lambda message: None)
        found.tell(Supervision("ended", 1, error), goes_on=False)
        assert state.read(found.address) == Supervision("down", 2, error), "started anew, it may find more memory later"
    finally:
        found.stop()
