"""Replicas that somebody finds machines for, each of which is a process here: over fake workers and loopback."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lsv import LLM
from lsv.config import EngineConfig, ReplicaNodes, Topology
from lsv.engine.replicas.nodes.charge import Charge
from lsv.engine.replicas.nodes.placed import Placed
from lsv.engine.replicas.nodes.placement import Placement
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.replicas.supervisors import Supervisors
from lsv.engine.socket_client import SocketClient
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv.resolve import resolve
from lsv_base.errors import ConfigError, EngineDied
from lsv_base.processes.ports import free_port
from lsv_offline.llm import read_arguments
from lsv_testing.fakes.engine import engine_config, install_plugin
from lsv_testing.fakes.text import letters
from lsv_testing.fakes.tokens import VOCABULARY
from lsv_testing.tiny import tiny
from suite.processes import children_of, words_of

from .conftest import LONG, SHORT, answer, states, until

pytestmark = pytest.mark.xdist_group("replica_nodes")


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key is needed: one is made."""
    install_plugin(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.delenv("LSV_CLUSTER_KEY", raising=False)


def placed_config(**changes: Any) -> EngineConfig:
    nodes = ReplicaNodes(headless=False, address="", port=free_port(), patience=30.0, placer="fake")
    known = {"topology": Topology(data=2, local=(0, 0)), "replica_nodes": nodes, "options": {"fake.delay": 0.01}}
    return engine_config(**{**known, **changes})


@asynccontextmanager
async def serving(
    config: EngineConfig, *, restarts: int = 1, vocabulary: int = VOCABULARY
) -> AsyncIterator[ReplicaSet]:
    def policy() -> RestartPolicy:
        return RestartPolicy(restarts, 600.0)

    supervisors = Supervisors(config.replicas(), restarts=policy)
    try:
        placed = Placed(
            config, supervisors.stand_ins, log_level="INFO", restarts=policy, drain=30.0, gang=supervisors.gang
        )
        async with placed:
            tokenizer = letters(vocabulary)
            each = zip(config.replicas(), supervisors.addresses, strict=True)
            client = ReplicaSet([SocketClient(one, address, tokenizer) for one, address in each])
            await client.start()
            try:
                yield client
            finally:
                await client.close()
    finally:
        await asyncio.to_thread(supervisors.stop)


def placement() -> int:
    """The process that places replicas."""
    (found,) = [pid for pid in children_of(os.getpid()) if any("placement" in word for word in words_of(pid))]
    return found


@pytest.mark.row("F-281", "F-569")
async def test_a_place_that_is_lost_costs_its_requests_alone_and_another_is_found() -> None:
    async with serving(placed_config()) as client:
        await client.ready()
        near, far = client.replicas
        assert await answer(near, SHORT) == await answer(far, SHORT)
        asked = [asyncio.create_task(answer(client, LONG, f"r{number}")) for number in range(4)]
        await until(lambda: near.stats.running == far.stats.running == 2)
        places = set(children_of(placement()))
        os.kill(min(places), signal.SIGKILL)
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert [len(end) for end in ends if isinstance(end, list)] == [150] * 2
        assert {type(end) for end in ends if not isinstance(end, list)} == {EngineDied}
        assert client.status.state == "ready"
        await until(lambda: states(client) == {"ready"})
        (other,) = set(children_of(placement())) - places
        assert await answer(near, SHORT) == await answer(far, SHORT)
    assert not Path(f"/proc/{other}").exists(), "all ends with the server"


async def test_a_lost_place_is_given_up_where_nothing_is_started_again() -> None:
    async with serving(placed_config(), restarts=0) as client:
        await client.ready()
        os.kill(min(children_of(placement())), signal.SIGKILL)
        await until(lambda: states(client) == {"ready", "dead"} and "is gone" in (client.status.error or ""))
        assert client.status.state == "ready"
        assert len(await answer(client, SHORT)) == 8


@pytest.mark.slow
async def test_all_are_placed_anew_when_the_placing_process_is_lost() -> None:
    async with serving(placed_config()) as client:
        await client.ready()
        before = placement()
        os.kill(before, signal.SIGKILL)
        why = "the process that places replicas by fake was killed by signal 9"
        # its places may be seen to go before it is
        await until(lambda: client.status.state == "loading" and why in (client.status.error or ""))
        await until(lambda: states(client) == {"ready"})
        assert placement() != before
        assert len(await answer(client, SHORT)) == 8


@pytest.mark.row("F-282", "F-574")
@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 1])
async def test_placed_replicas_share_experts(restarts: int, tmp_path: Path) -> None:
    given = {
        "model": str(tiny("qwen3_moe", tmp_path / "model", num_experts=8, mlp_only_layers=[])), "dtype": "float32",
        "max_model_len": 128, "skip_tokenizer_init": True, "kv_cache_memory_bytes": 1 << 20,
    }  # fmt: skip
    params = SHORT.replace(detokenize=False)
    with LLM(**given) as llm:
        (one,) = llm.generate({"prompt_token_ids": [1, 2, 3]}, params, use_tqdm=False)
    wanted = list(one.outputs[0].token_ids)
    shared = resolve(*read_arguments({**given, "data_parallel_size": 2, "enable_expert_parallel": True}))
    nodes, topology = placed_config().replica_nodes, msgspec.structs.replace(shared.topology, local=(0, 0))
    plugins = (*shared.plugins, "fake_engine")
    config = msgspec.structs.replace(shared, topology=topology, replica_nodes=nodes, plugins=plugins)
    async with serving(config, restarts=restarts, vocabulary=64) as client:
        await client.ready()
        assert await asyncio.gather(*(answer(one, params) for one in client.replicas)) == [wanted] * 2
        os.kill(min(children_of(placement())), signal.SIGKILL)
        await until(lambda: "ready" not in states(client))
        await until(lambda: states(client) == {"ready" if restarts else "dead"})
        if restarts:
            assert await asyncio.gather(*(answer(one, params) for one in client.replicas)) == [wanted] * 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"fake.room": 1}, "there is room for 1 of 2 replicas"), ({"fake.start_error": "no memory"}, "no memory")],
)
async def test_what_can_not_be_placed_ends_the_server(options: dict[str, Any], problem: str) -> None:
    async with serving(placed_config(options=options)) as client:
        with pytest.raises(ConfigError, match=problem):
            await client.ready()


class Shared:
    """A place that shares its machine, and keeps what it was given."""

    share = (2, 3)

    def __init__(self) -> None:
        self.given = b""

    def serve(self, charge: bytes) -> bytes:
        self.given = charge
        return msgspec.msgpack.encode(EngineDied("it is over").record())

    def move(self) -> None: ...


async def test_replicas_that_share_a_machine_have_a_part_of_its_devices_each() -> None:
    config = placed_config(topology=Topology(data=4, tensor=2, local=(0, 0)))
    found, place = Placement(Charge(config=config, key=b"", log_level="INFO", restarts=(1, 1.0), drain=1.0)), Shared()
    found.start([place])
    gone = await asyncio.to_thread(found.given_up.get, timeout=30)
    found.end()
    assert (gone.replica, gone.error.message) == (0, "it is over")
    topology = msgspec.msgpack.decode(place.given, type=Charge).config.topology
    assert (topology.replica, topology.devices, topology.first_device) == (0, 6, 4)
    assert topology.is_local
