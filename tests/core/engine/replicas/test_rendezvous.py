"""Who computes together on several machines: the machine's side of a gang, and where all are told of each other."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from lsv.config import EngineConfig, ReplicaNodes, Topology
from lsv.engine.replicas.nodes.contingent import Contingent
from lsv.engine.replicas.nodes.links import open_rhythm
from lsv.engine.replicas.nodes.messages import Left, ToNode0, Waiting
from lsv.engine.replicas.nodes.reception import Reception
from lsv.engine.replicas.nodes.rendezvous import Spot
from lsv.engine.replicas.nodes.stand_in import StandIn
from lsv.engine.supervision.gang import Gang
from lsv.processes.nodes.handshake import MEETING, OtherKey, introduce
from lsv.processes.nodes.meeting import Meet, Met, meet
from lsv_base.errors import EngineDied, LsvError
from lsv_base.processes.peer import Peer
from lsv_testing.fakes.engine import engine_config
from suite.waiting import until

from .machines import HERE, KEY, find_port

pytestmark = pytest.mark.xdist_group("replica_nodes")

SOON = 20.0


@asynccontextmanager
async def reception(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[EngineConfig]]:
    """Of a gang of three that has begun: what their engines are told."""
    monkeypatch.setenv("LSV_CLUSTER_KEY", KEY)
    nodes = ReplicaNodes(headless=False, address=HERE, port=find_port(), patience=SOON)
    gang = Gang(3, Spot)
    for number in range(3):
        gang.expect(number, lambda meeting: None)
    topology = Topology(data=3, expert=3, local=(0, 0), meeting=gang.meeting)
    configs = engine_config(topology=topology, replica_nodes=nodes).replicas()
    stand_ins = [StandIn(number, gang) for number in range(3)]
    async with Reception(configs[0], stand_ins, KEY.encode(), gang):
        yield list(configs)
    for one in stand_ins:
        one.stop()


def ask(config: EngineConfig, start: str, key: str = KEY) -> Peer[Meet, Met]:
    peer: Peer[Meet, Met] = Peer(connect(config, key), Met)
    peer.send(Meet(start, "ranks", 0, 2, "here"))
    return peer


def connect(config: EngineConfig, key: str = KEY) -> socket.socket:
    assert config.replica_nodes is not None
    end = socket.create_connection((HERE, config.replica_nodes.port), SOON)
    try:
        introduce(end, key.encode(), MEETING)
    except OtherKey:
        end.close()
        raise
    return end


async def test_all_of_a_group_are_told_how_the_others_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reception(monkeypatch) as configs:
        told = [
            asyncio.to_thread(meet, configs[0], group, place, 2, f"{group}{place} {{}}".format)
            for place in (1, 0)
            for group in ("a", "b")
        ]
        both = ("a0 127.0.0.1", "a1 127.0.0.1"), ("b0 127.0.0.1", "b1 127.0.0.1")
        assert await asyncio.gather(*told) == [*both, *both]


async def test_engines_are_connected_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reception(monkeypatch) as configs:
        three = await asyncio.gather(*(asyncio.to_thread(open_rhythm, config) for config in configs))
        three[1].take()
        for heard in (three[0], three[2]):
            assert await asyncio.to_thread(select.select, [heard], [], [], SOON)
            heard.listen()
        assert [rhythm.behind for rhythm in three] == [True, False, True]
        for rhythm in three:
            rhythm.close()


async def test_who_has_no_part_in_this_start_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reception(monkeypatch) as configs:
        with pytest.raises(OtherKey):
            await asyncio.to_thread(ask, configs[0], configs[0].topology.meeting, "a secret of other machines")
        stale = await asyncio.to_thread(ask, configs[0], Spot().address)
        with pytest.raises((EOFError, ConnectionError)):
            await asyncio.to_thread(stale.receive, SOON)
        waiting = await asyncio.to_thread(ask, configs[0], configs[0].topology.meeting)
    with pytest.raises((EOFError, ConnectionError)):  # the server has ended
        await asyncio.to_thread(waiting.receive, SOON)
    for peer in (stale, waiting):
        peer.channel.close()


async def test_who_says_nothing_is_sent_away_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with reception(monkeypatch) as configs:
        silent = await asyncio.to_thread(connect, configs[0])
        await until(lambda: "Rendezvous.receive" in str(asyncio.all_tasks()))
    with silent:
        assert await asyncio.to_thread(silent.recv, 1) == b""


class Starts:
    """A contingent of two engines, each with a thread that waits for its start."""

    def __init__(self) -> None:
        self.contingent, self.said = Contingent(), list[ToNode0]()
        self.begun: dict[int, str | None] = {}
        self._threads: list[threading.Thread] = []

    def wait(self, *numbers: int) -> None:
        self._threads = [threading.Thread(target=self._assemble, args=(number,)) for number in numbers]
        for thread in self._threads:
            thread.start()
        ends = time.monotonic() + SOON
        while not set(numbers) <= self.contingent._waiting.keys():
            assert time.monotonic() < ends

    def _assemble(self, number: int) -> None:
        self.begun[number] = self.contingent.assemble(number)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(SOON)
            assert not thread.is_alive()


def test_engines_of_a_machine_start_and_end_as_node_0_says() -> None:
    starts, fallen = Starts(), list[LsvError]()
    there = starts.contingent
    starts.wait(2, 3)
    there.attach(starts.said.append)
    assert starts.said == [Waiting(2), Waiting(3)], "node 0 has come later"
    there.fall(2, EngineDied("of another start"))
    there.begin(2, "here")
    there.begin(3, "here")
    starts.join()
    assert starts.begun == {2: "here", 3: "here"}
    there.enter(2, fallen.append)
    there.leave(2, EngineDied("it was killed"))
    assert starts.said[2:] == [Left(2, EngineDied("it was killed").record())]
    why = EngineDied("replica 2 is gone")
    there.fall(2, why)
    there.fall(3, why)
    assert not fallen
    there.enter(3, fallen.append)  # it was about to start
    assert fallen == [why]
    starts.wait(2, 3)
    there.begin(2, "there")
    there.begin(3, "there")
    starts.join()
    for number in (2, 3):
        there.enter(number, fallen.append)
    gone = EngineDied("node 0 is gone")
    there.detach(gone)
    assert fallen == [why, gone, gone]
    starts.wait(2)
    with there._changed:  # one that is told to start and to end in the same moment does both
        there.begin(2, "nowhere")
        there.fall(2, why)
    starts.join()
    assert starts.begun[2] == "nowhere"
    there.enter(2, fallen.append)
    assert fallen[3:] == [why]
    starts.wait(2)
    there.disband()
    starts.join()
    assert starts.begun[2] is None
