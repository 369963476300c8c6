"""Ranks on two machines, each of which is a process here: they answer as one, and say what keeps them apart. And two
replicas of two machines each.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv.config import EngineConfig, Part
from lsv.engine.connect import open_client
from lsv.engine.replicas.renewal import Renewal
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.replicas.supervisors import Supervisors
from lsv.engine.socket_client import SocketClient
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv.processes.nodes.door import Door, listen
from lsv.processes.nodes.handshake import JOINING, Challenge, OtherKey, OtherProtocol, introduce
from lsv.processes.nodes.newcomer import Likeness, Newcomer, describe
from lsv.processes.nodes.reaching import Way, reach
from lsv.resolve import resolve
from lsv_base.errors import ConfigError, EngineDied, LsvError, StartError
from lsv_base.processes.peer import Peer
from lsv_offline.llm import read_arguments
from lsv_runtime.worker.nodes import member
from lsv_runtime.worker.nodes.gathering import Gathering
from lsv_runtime.worker.nodes.messages import Answer, Join
from lsv_testing.fakes.client import fake_config
from lsv_testing.fakes.requests import make_spec
from lsv_testing.tiny import tiny

KEY = "a secret of two machines"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
PROMPTS = [{"prompt_token_ids": list(range(5, 5 + length))} for length in (3, 17, 40)]
PLAIN: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 8}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("nodes") / "llama"
    return str(tiny("llama", folder, tokenizer=True, max_position_embeddings=4096))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_CLUSTER_KEY", KEY)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def options(port: int, **more: Any) -> dict[str, Any]:
    return {**PLAIN, "nnodes": 2, "master_addr": "127.0.0.1", "master_port": port, "node_timeout": 60, **more}


@contextmanager
def node(checkpoint: str, number: int = 1, key: str = KEY, **given: Any) -> Iterator[subprocess.Popen[str]]:
    """``lsv serve`` as on another machine."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**given, "node_rank": number}.items()]
    running = subprocess.Popen(
        [sys.executable, "-m", "lsv", "serve", checkpoint, "--headless", *flags],
        env={**os.environ, "LSV_CLUSTER_KEY": key}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def answers(llm: LLM) -> list[tuple[int, ...]]:
    return [one.outputs[0].token_ids for one in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def keep_answering(llm: LLM) -> None:
    for _ in range(1000):
        answers(llm)


def listening() -> set[str]:
    """The IPv4 addresses at which processes of this machine listen (proc(5), net/tcp: little-endian, state 0A)."""
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    ends = (bytes.fromhex(local.partition(":")[0]) for _, local, _, state, *_ in lines if state == "0A")
    return {socket.inet_ntoa(end[::-1]) for end in ends}


def open_first(checkpoint: str, given: dict[str, Any]) -> LLM:
    return LLM(checkpoint, skip_tokenizer_init=True, node_rank=0, **given)


@pytest.mark.row("F-276", "F-280", "F-1001")
@pytest.mark.parametrize(
    "axis", [pytest.param("tensor_parallel_size", marks=pytest.mark.slow), "pipeline_parallel_size"]
)
def test_two_machines_answer_as_one_and_end_together(checkpoint: str, port: int, axis: str) -> None:
    with LLM(checkpoint, skip_tokenizer_init=True, **PLAIN) as llm:
        expected = answers(llm)
    given = options(port, **{axis: 2})
    with node(checkpoint, **given) as other:
        with open_first(checkpoint, given) as llm:
            assert answers(llm) == expected
        said = other.communicate(timeout=20)[0]
        assert other.returncode == 0, said
        assert "node 0 has ended" in said


def test_a_machine_that_is_lost_is_named(checkpoint: str, port: int) -> None:
    given = options(port, tensor_parallel_size=2)
    with node(checkpoint, **given) as other, open_first(checkpoint, given) as llm:
        answers(llm)
        other.kill()
        with pytest.raises(EngineDied, match=r"the worker of rank 1 on node 1 \(127\.0\.0\.1\) is gone"):
            keep_answering(llm)


@pytest.mark.row("F-581", "F-806")
def test_machines_say_their_own_addresses(checkpoint: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSV_HOST_IP", "")  # restored after the test; the option replaces it
    with LLM(checkpoint, skip_tokenizer_init=True, **PLAIN) as llm:
        expected = answers(llm)
    given = options(port, tensor_parallel_size=2)
    first = {**given, "host_ip": "127.0.0.2"}
    with node(checkpoint, host_ip="127.0.0.3", **given) as other, open_first(checkpoint, first) as llm:
        assert answers(llm) == expected
        assert {"127.0.0.2", "127.0.0.3"} <= listening(), "gloo listens at each machine's own address"
        other.kill()
        with pytest.raises(EngineDied, match=r"the worker of rank 1 on node 1 \(127\.0\.0\.3\) is gone"):
            keep_answering(llm)


@pytest.mark.row("F-983")
def test_an_address_of_another_machine_is_refused(checkpoint: str, port: int) -> None:
    with pytest.raises(ConfigError, match=r"master_addr=203\.0\.113\.1, .* must be one of this machine's"):
        open_first(checkpoint, options(port, tensor_parallel_size=2, master_addr="203.0.113.1"))


@pytest.mark.row("F-577")
def test_machines_of_other_options_end_both_by_name(checkpoint: str, port: int) -> None:
    given = options(port, tensor_parallel_size=2)
    with node(checkpoint, **{**given, "max_model_len": 64}) as other:
        with pytest.raises(ConfigError, match=r"node 1 \(127\.0\.0\.1\).*max_model_len is 128 here and 64 there"):
            open_first(checkpoint, given)
        said = other.communicate(timeout=20)[0]
    assert other.returncode == 2, said
    assert "don't fit together: max_model_len is 128 here and 64 there" in said.replace("\n", " ")


@pytest.mark.row("F-577")
def test_a_machine_of_another_checkpoint_is_refused(checkpoint: str, port: int, tmp_path: Path) -> None:
    given = options(port, tensor_parallel_size=2)
    fatter = tiny("llama", tmp_path / "llama", tokenizer=True, intermediate_size=80)
    with node(str(fatter), **given), pytest.raises(ConfigError, match="are different checkpoints"):
        open_first(checkpoint, given)


def test_a_machine_of_another_part_is_refused(tmp_path: Path) -> None:
    for name, size in (("own", 3), ("part", 5), ("copy", 5), ("other", 7)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes(size))

    def with_part(name: str) -> EngineConfig:
        part = Part(key="text_model_id", place="text", folder=str(tmp_path / name))
        return fake_config(model=str(tmp_path / "own"), parts=(part,))

    def join(there: EngineConfig) -> EngineConfig:
        return Likeness(with_part("part")).read(Newcomer(**describe(there)))

    assert join(with_part("copy")) == with_part("copy"), "each has its own folders"
    for there in (with_part("other"), fake_config(model=str(tmp_path / "own"))):
        with pytest.raises(ConfigError, match="are different checkpoints"):
            join(there)


def test_a_machine_of_another_key_is_turned_away_and_told(checkpoint: str, port: int) -> None:
    given = options(port, tensor_parallel_size=2, node_timeout=5)
    with node(checkpoint, key="another secret of theirs", **given) as other:
        with pytest.raises(StartError, match=r"no word from node 1 of 2 .*127\.0\.0\.1 has another LSV_CLUSTER_KEY"):
            open_first(checkpoint, given)
        said = other.communicate(timeout=20)[0]
    assert other.returncode == 2, said
    assert "has another LSV_CLUSTER_KEY" in said


REPLICAS: dict[str, Any] = {
    "data_parallel_size": 2, "tensor_parallel_size": 2, "nnodes": 4, "max_model_len": 4096, "cpu_threads": 1,
}  # fmt: skip


@pytest.fixture
def ports() -> int:
    """The first of two in a row."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as free, socket.socket() as next_to_it:
            first = int(free.getsockname()[1])
            if first < 65535 and next_to_it.connect_ex(("127.0.0.1", first + 1)) != 0:
                return first


@asynccontextmanager
async def serve(checkpoint: str, given: dict[str, Any]) -> AsyncIterator[tuple[ReplicaSet, Supervisors]]:
    """Node 0 of several replicas."""
    settings, loaded = read_arguments({"model": checkpoint, **given, "node_rank": 0})
    config = resolve(settings, loaded)
    supervisors = Supervisors(config.replicas(), restarts=lambda: RestartPolicy(3, 600.0))
    supervisors.start()
    try:
        client = open_client(config, supervisors.addresses, settings, loaded, serves=False)
        assert isinstance(client, ReplicaSet)
        await client.start()
        try:
            yield client, supervisors
        finally:
            await client.close()
    finally:
        await asyncio.to_thread(supervisors.stop)


async def ask(client: SocketClient, ids: Sequence[int], tokens: int = 12) -> tuple[int, ...]:
    request = make_spec(ids, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))
    return tuple([token for chunk in [chunk async for chunk in client.generate(request)] for token in chunk.ids])


async def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < ends, "it never came true"
        await asyncio.sleep(0.01)


@pytest.mark.row("F-281", "F-569", "F-571")
@pytest.mark.xdist_group("replica_nodes")
async def test_a_machine_that_is_lost_ends_only_the_replica_that_it_has_ranks_of(
    checkpoint: str, ports: int, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = [prompt["prompt_token_ids"] for prompt in PROMPTS]
    with LLM(checkpoint, skip_tokenizer_init=True, **{**PLAIN, "max_model_len": 4096}) as llm:
        expected = answers(llm)
    given = options(ports, **REPLICAS)
    with node(checkpoint, 1, **given) as second, node(checkpoint, 2, **given) as third:
        async with serve(checkpoint, given) as (client, supervisors):
            near, far = client.replicas
            await until(lambda: far.status.stage == "waiting for node 3")
            with node(checkpoint, 3, **given) as lost:
                await client.ready()
                for one in (near, far):
                    assert [await ask(one, ids) for ids in prompts] == expected
                Renewal(client.replicas, supervisors, drain=1.0).begin()
                assert "not replaced: their machines end with the engines" in caplog.text
                begun = [one.stats.generation_tokens_total for one in (near, far)]
                breaks_off = asyncio.create_task(ask(far, prompts[0], 4000))
                await until(lambda: far.stats.generation_tokens_total > begun[1])
                goes_on = asyncio.create_task(ask(near, prompts[0], 100))
                await until(lambda: near.stats.generation_tokens_total > begun[0])
                lost.kill()
                with pytest.raises(EngineDied, match=r"the worker of rank 1 on node 3 \(127\.0\.0\.1\) is gone"):
                    await breaks_off
            whole = await goes_on
            assert (len(whole), whole[:12]) == (100, expected[0])
            await until(lambda: far.status.stage == "waiting for node 3")
            assert client.status.state == "ready"
            assert client.status.error == "replica 1: the worker of rank 1 on node 3 (127.0.0.1) is gone"
            with node(checkpoint, 3, **given) as again:
                await until(lambda: far.status.state == "ready")
                assert client.status.error is None
                assert [await ask(far, ids) for ids in prompts] == expected
                await client.close()
                await asyncio.to_thread(supervisors.stop)
                for machine in (second, third, again):
                    said = (await asyncio.to_thread(machine.communicate, timeout=60))[0]
                    assert machine.returncode == 0, said
                    assert "node 0 has ended" in said


@pytest.mark.row("F-282", "F-570", "F-571")
@pytest.mark.slow
@pytest.mark.xdist_group("replica_nodes")
@pytest.mark.parametrize("axis", ["tensor_parallel_size", "pipeline_parallel_size"])
async def test_replicas_of_several_machines_share_experts(axis: str, tmp_path: Path, ports: int) -> None:
    """Both fail with a machine that is lost, and come back with it."""
    sparse = str(tiny("qwen3_moe", tmp_path / "sparse", num_experts=8, mlp_only_layers=[], tokenizer=True))
    prompts = [prompt["prompt_token_ids"] for prompt in PROMPTS]
    with LLM(sparse, skip_tokenizer_init=True, **PLAIN) as llm:
        expected = answers(llm)
    layout = {**REPLICAS, "tensor_parallel_size": 1, axis: 2, "max_model_len": 128}
    given = options(ports, **layout, enable_expert_parallel=True)
    flags = {**given, "enable_expert_parallel": "true"}
    with node(sparse, 1, **flags) as second, node(sparse, 2, **flags) as third:
        async with serve(sparse, given) as (client, _):
            near, far = client.replicas
            with node(sparse, 3, **flags) as lost:
                await client.ready()
                assert [await ask(near, ids) for ids in prompts] == expected, "the other one has nothing to do"
                both = await asyncio.gather(*(ask(one, ids) for ids in prompts for one in (near, far)))
                assert both == [answer for answer in expected for _ in range(2)]
                asked = [asyncio.create_task(ask(one, prompts[0], 100)) for one in (near, far)]
                await until(lambda: near.stats.generation_tokens_total > 100)
                lost.kill()
                ends = [str(end) for end in await asyncio.gather(*asked, return_exceptions=True)]
                gone = "the worker of rank 1 on node 3 (127.0.0.1) is gone"
                assert ends == [f"replica 1 is gone, with which this one shares experts: {gone}", gone]
            with node(sparse, 3, **flags):
                await until(lambda: {one.status.state for one in client.replicas} == {"ready"})
                assert [await ask(one, prompts[2]) for one in (far, near)] == [expected[2]] * 2
        for machine in (second, third):
            said = (await asyncio.to_thread(machine.communicate, timeout=60))[0]
            assert machine.returncode == 0, said


def test_a_machine_that_does_not_fit_ends_no_replica(
    checkpoint: str, ports: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, and waited for again."""
    given = {"model": checkpoint, **options(ports, **REPLICAS)}
    second = resolve(*read_arguments({**given, "node_rank": 0})).replicas()[1]
    other = resolve(*read_arguments({**given, "node_rank": 3, "max_model_len": 64}))
    assert second.nodes is not None
    way = Way("127.0.0.1", second.nodes.port_of(second.topology), 10.0, "")
    joined: list[Peer[Join, Answer]] = []

    def progress(stage: str, done: int, total: int) -> None:
        assert (stage, done, total) == ("waiting for node 2, 3", 0, 2)
        if not joined:
            joined.append(Peer(reach(way, KEY.encode(), JOINING), Answer))
            joined[0].send(Join(**describe(other), number=3, count=4, nearby=""))
        elif "was turned away: it does not fit: max_model_len is 4096 here and 64 there" in caplog.text:
            with pytest.raises(ConfigError, match=r"node 3 \(127\.0\.0\.1\) and node 0 don't fit together"):
                joined[0].receive(5.0)
            raise SystemExit

    gathering = Gathering(second, second.nodes, KEY.encode(), progress)
    with pytest.raises(SystemExit):
        gathering.await_members()
    gathering.close()
    joined[0].channel.close()


@pytest.mark.parametrize("keys", [(b"one", b"one"), (b"one", b"other")])
def test_both_sides_show_that_they_have_the_key(keys: tuple[bytes, bytes]) -> None:
    here, there = socket.socketpair()
    admitted: list[int | None] = []

    def listen() -> None:
        challenge = Challenge(keys[0])
        here.sendall(challenge.greeting)
        purpose, reply = challenge.judge(here.recv(Challenge.size, socket.MSG_WAITALL))
        admitted.append(purpose)
        here.sendall(reply)

    listener = Thread(target=listen)
    with here, there:
        listener.start()
        if keys[0] == keys[1]:
            introduce(there, keys[1], 7)
        else:
            with pytest.raises(OtherKey):
                introduce(there, keys[1], JOINING)
        listener.join(10)
    assert admitted == [7 if keys[0] == keys[1] else None]


def test_whatever_else_answers_is_not_told_anything() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(OtherProtocol):
            introduce(there, b"key", JOINING)
        here.setblocking(False)
        with pytest.raises(BlockingIOError):
            here.recv(1)


@pytest.mark.parametrize(
    ("ends", "runs"),
    [
        ([EngineDied("gone"), StartError("no word from node 2"), None], 3),
        ([StartError("no word from node 2"), None], 1),
    ],
)
def test_a_machine_whose_engine_ran_once_waits_with_it(
    monkeypatch: pytest.MonkeyPatch, ends: list[LsvError | None], runs: int
) -> None:
    """The engine's own supervisor tries again after an error at the start, too, if it ran before."""
    left = list(ends)

    def serve_once(*_: object) -> None:
        if (error := left.pop(0)) is not None:
            raise error

    monkeypatch.setattr(member, "_serve_once", serve_once)
    monkeypatch.setattr(member, "load_platform", lambda *_, **__: SimpleNamespace(environment=lambda _: {}))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    config: Any = SimpleNamespace(nodes=object(), platform="cpu", emulate=False, options={})
    with nullcontext() if runs > 1 else pytest.raises(StartError):
        member.serve_node(config, None, lambda _: 0.0)  # type: ignore[arg-type]
    assert len(ends) - len(left) == runs


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door(listen("127.0.0.1", 0), b"key")
    yield opened
    opened.close()


def wait_at(door: Door) -> int | None:
    for _ in range(50):
        if (guest := door.wait()) is not None:
            guest.end.close()
            return guest.purpose
    raise AssertionError("nobody has come")


def test_silent_connections_delay_no_node(door: Door) -> None:
    silent = [socket.create_connection((door.host, door.port)) for _ in range(8)]
    began = time.monotonic()
    with socket.create_connection((door.host, door.port)) as end:
        introduce(end, b"key", 7)
    assert wait_at(door) == 7
    assert time.monotonic() - began < 2.0, "one after the other, the silent would have taken 16 s"
    for one in silent:
        one.close()


def test_one_byte_at_a_time_is_too_slow(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsv.processes.nodes.door._STRANGER_SECONDS", 0.2)
    with socket.create_connection((door.host, door.port)) as end:
        end.settimeout(10)
        began = time.monotonic()
        with suppress(OSError):
            for _ in range(66):
                end.sendall(b"x")
                time.sleep(0.02)
    assert time.monotonic() - began < 1.2, "66 bytes would have taken 1.3 s"


def test_a_closed_door_lets_nobody_in(door: Door) -> None:
    with socket.create_connection((door.host, door.port)) as end:
        introduce(end, b"key", 7)
        door.close()
        end.settimeout(5)
        assert end.recv(1) == b"", "who was not asked for is sent away"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((door.host, door.port))
