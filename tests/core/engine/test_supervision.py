"""Hangs are seen and ended, engines are started again, and no client waits for one that is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from lsv.config import Fit
from lsv.engine import socket_client
from lsv.engine.messages import PROTOCOL, Ready, Welcome
from lsv.engine.socket_client import SocketClient
from lsv.engine.supervision import state, supervisor
from lsv.engine.supervision.silence import Silence
from lsv.engine.supervision.state import Supervision
from lsv.engine.supervision.supervisor import RestartPolicy, Supervisor
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_base.errors import ConfigError, EngineDied, LsvError, Overloaded
from lsv_base.processes.wire import encode_frame
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.engine import engine_config, install_plugin
from lsv_testing.fakes.requests import make_spec
from lsv_testing.fakes.text import letters
from suite.processes import is_running

TOKENIZER = letters(fake_tokens.VOCABULARY)
SOON = 20.0
"""Seconds in which anything here has to happen, on a busy machine."""


class Served:
    """A supervised engine and a client of it."""

    def __init__(self, restarts: int, **changes: Any) -> None:
        self.config = engine_config(**changes)
        self.supervisor = Supervisor(self.config, restarts=RestartPolicy(restarts, 600.0))
        self.client = self.connect()

    def connect(self) -> SocketClient:
        return SocketClient(self.config, self.supervisor.address, TOKENIZER)

    @property
    def pid(self) -> int:
        process = self.supervisor.process
        assert process is not None
        return process.pid

    async def answer(self, count: int = 5) -> list[int]:
        spec = make_spec([1, 2, 3], SamplingParams(max_tokens=count, ignore_eos=True, temperature=0.0))
        return [token async for chunk in self.client.generate(spec) for token in chunk.ids]

    async def close(self) -> None:
        await self.client.close()
        await asyncio.to_thread(self.supervisor.stop)


Start = Callable[..., Awaitable[Served]]


@pytest.fixture
async def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """``await start(restarts=1, step_timeout=…, options={…})``."""
    install_plugin(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    made: list[Served] = []

    async def start_engine(*, wait: bool = True, restarts: int = 0, **changes: Any) -> Served:
        served = Served(restarts, **changes)
        made.append(served)
        served.supervisor.start()
        await served.client.start()
        if wait:
            await served.client.ready()
        return served

    yield start_engine
    for served in made:
        folder = served.supervisor.address.parent
        await served.close()
        assert not folder.exists()


async def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)


# Hangs


@pytest.mark.row("F-987")
async def test_a_step_that_hangs_ends_the_engine_and_its_requests(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    served = await start(restarts=3, step_timeout=0.4, options={"fake.hang": 2})
    first = served.pid
    with pytest.raises(EngineDied, match=r"hangs while serving: .* step_timeout=0\.4"):
        await asyncio.wait_for(served.answer(), SOON)
    assert served.client.status.state == "loading"
    assert "hangs" in str(served.client.status.error)
    await asyncio.wait_for(served.client.ready(), SOON)
    assert not is_running(first)
    assert "in collect" in capfd.readouterr().err, "the log shows where it hung"
    assert len(await served.answer(2)) == 2


@pytest.mark.row("F-987")
async def test_a_step_that_takes_long_is_no_hang(start: Start) -> None:
    served = await start(step_timeout=1.6, options={"fake.delay": 1.2})
    assert len(await served.answer(2)) == 2


async def test_an_engine_that_is_stopped_while_idle_is_seen(start: Start) -> None:
    served = await start(restarts=3, step_timeout=0.4)
    os.kill(served.pid, signal.SIGSTOP)
    await wait_for(lambda: served.client.status.state != "ready")
    assert "hangs" in str(served.client.status.error)
    await asyncio.wait_for(served.client.ready(), SOON)
    assert served.client.status.error is None
    assert len(await served.answer()) == 5


async def test_a_start_that_hangs_is_seen(start: Start) -> None:
    slowly = {"fake.load_delay": 1.0, "fake.load_parts": 30}
    served = await start(wait=False, load_timeout=2.0, step_timeout=0.4, options=slowly)
    await wait_for(lambda: served.client.status.stage == "weights")
    os.kill(served.pid, signal.SIGSTOP)
    with pytest.raises(EngineDied, match=r"hangs while loading \(weights\): .* load_timeout=2 "):
        await asyncio.wait_for(served.client.ready(), SOON)


async def test_loading_may_take_longer_than_a_step(start: Start) -> None:
    served = await start(load_timeout=5.0, step_timeout=0.2, options={"fake.load_delay": 1.0})
    assert len(await served.answer()) == 5


async def test_a_worker_that_is_lost_while_nothing_runs_is_seen(start: Start) -> None:
    served = await start(options={"fake.lose": 1}, wait=False)
    await wait_for(lambda: served.client.status.state == "dead")
    assert "a worker is gone" in str(served.client.status.error)


async def test_a_parent_that_is_held_up_does_not_blame_the_engine(start: Start) -> None:
    """What has arrived meanwhile counts, however late it is read."""
    served = await start(step_timeout=0.4)
    first = served.pid
    hold = threading.Event()
    asyncio.get_running_loop().call_soon(hold.wait, 2.5)  # the client's loop stands still
    await asyncio.sleep(0.1)
    assert len(await served.answer()) == 5
    assert served.pid == first


async def test_silence_is_judged_after_what_has_arrived_was_read() -> None:
    silence = Silence(0.4)
    judging = asyncio.create_task(silence.wait_for_hang())
    for _ in range(10):
        await asyncio.sleep(0.1)
        silence.end(0.4)
    assert not judging.done()
    assert "said nothing for 0.4 s" in (await asyncio.wait_for(judging, SOON)).message


# Several clients


async def test_clients_share_an_engine_and_follow_it(start: Start) -> None:
    served = await start(restarts=2)
    other, third = served.connect(), served.connect()
    for client in (other, third):
        await client.start()
        await asyncio.wait_for(client.ready(), SOON)
    await third.close()
    assert len(await served.answer()) == 5, "a client that leaves stops nobody's engine"
    os.kill(served.pid, signal.SIGKILL)
    for client in (served.client, other):
        await wait_for(lambda client=client: client.status.state != "ready")  # type: ignore[misc]
        assert "signal 9" in str(client.status.error)
    for client in (served.client, other):
        await asyncio.wait_for(client.ready(), SOON)
    assert len(await served.answer()) == 5
    await asyncio.to_thread(served.supervisor.stop)
    await wait_for(lambda: served.client.status.state == other.status.state == "dead")
    await other.close()


# A client's faults


class Impostor:
    """A listener that says that it is an engine, and then what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.address = state.socket_in(folder)
        self.connections: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.address))
        self._listener.listen()
        state.publish(folder, Supervision("running", 1))
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for end in self.connections:
            end.close()

    def _serve(self) -> None:
        fit = Fit(num_blocks=9, block_size=4, kv_bytes=1, weight_bytes=1, max_model_len=99, vocab_size=96)
        config = engine_config()
        while True:
            try:
                end, _ = self._listener.accept()
            except OSError:
                return
            end.sendall(encode_frame(Welcome(PROTOCOL, "0", config.fingerprint(), config)) + encode_frame(Ready(fit)))
            self.connections.append(end)


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[Impostor]:
    with Impostor(tmp_path) as made:
        yield made


async def test_a_damaged_frame_fails_requests_and_not_the_client(impostor: Impostor) -> None:
    client = SocketClient(engine_config(), impostor.address, TOKENIZER)
    await client.start()
    await asyncio.wait_for(client.ready(), SOON)

    async def ask() -> None:
        async for _ in client.generate(make_spec([1, 2, 3], SamplingParams())):
            pass

    asking = asyncio.create_task(ask())
    await wait_for(lambda: bool(client._inboxes and impostor.connections))
    impostor.connections[0].sendall(b"\x03\0\0\0\x93\x01\x02")
    with pytest.raises(EngineDied, match="the connection to the engine failed: ValidationError"):
        await asyncio.wait_for(asking, SOON)
    await asyncio.wait_for(client.ready(), SOON)
    assert len(impostor.connections) == 2
    await client.close()


async def test_a_fault_of_the_clients_own_is_no_silence(impostor: Impostor, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise MemoryError

    client = SocketClient(engine_config(), impostor.address, TOKENIZER)
    monkeypatch.setattr(state, "read", break_down)
    await client.start()
    with pytest.raises(EngineDied, match="client failed: MemoryError"):
        await asyncio.wait_for(client.ready(), SOON)
    await client.close()


async def test_requests_do_not_pile_up_before_an_engine_that_does_not_read(
    impostor: Impostor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_client, "_MOST_UNSENT", 1 << 16)
    client = SocketClient(engine_config(max_model_len=99), impostor.address, TOKENIZER)
    await client.start()
    await asyncio.wait_for(client.ready(), SOON)
    refused: list[LsvError] = []
    prompts = (Prompt(ids=(1,) * 90),) * 100
    asked = RequestSpec(prompts=prompts, sampling=SamplingParams(max_tokens=4), request_id="r")

    async def ask() -> None:
        try:
            async for _ in client.generate(asked):
                pass
        except Overloaded as error:
            refused.append(error)

    tasks = [asyncio.create_task(ask()) for _ in range(60)]
    await wait_for(lambda: bool(refused))
    assert "try again later" in refused[0].message
    assert client._writer is not None
    assert client._writer.transport.get_write_buffer_size() < 1 << 18
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.close()


# Restarts


def test_restarts_count_within_a_window() -> None:
    policy = RestartPolicy(3, 100.0)
    assert [policy.delay(now) for now in (0.0, 10.0, 20.0, 30.0)] == [0.5, 1.0, 2.0, None]
    assert policy.delay(101.0) == 2.0, "the first one counts no more"
    assert policy.delay(102.0) is None
    assert policy.delay(500.0) == 0.5
    assert [RestartPolicy(99, 100.0).delay(0.0) for _ in range(2)] == [0.5, 0.5]
    many = RestartPolicy(99, 100.0)
    assert max(many.delay(0.0) or 0 for _ in range(20)) == 30.0


class Run:
    """A process that ends at once with an error; where that is an ``OSError``, it can't even be started."""

    def __init__(self, error: Exception, *, served: bool = True) -> None:
        if isinstance(error, OSError):
            raise error
        self._error = error
        self.has_served = served

    def watch(self) -> Exception:
        return self._error

    def ask_to_end(self) -> None:
        pass

    def end(self, seconds: float) -> None:
        pass


def supervise(monkeypatch: pytest.MonkeyPatch, *makes: Callable[[], Run], limit: int = 9) -> tuple[int, str]:
    """How many processes are started, and what the supervisor ends with."""
    left = iter(makes)
    started = 0

    def start_next(*_: object) -> Run:
        nonlocal started
        started += 1
        return next(left)()

    monkeypatch.setattr(supervisor, "EngineProcess", start_next)
    monkeypatch.setattr(supervisor, "_FIRST_DELAY", 0.0)
    watched = Supervisor(engine_config(), restarts=RestartPolicy(limit, 600.0))
    watched.start()
    watched._thread.join(SOON)
    found = state.read(watched.address)
    watched.stop()
    assert found.state == "ended"
    assert found.error is not None
    assert state.read(watched.address).error is not None, "clients that look later learn that it was stopped"
    return started, found.error.message


def test_a_process_that_can_not_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Run:
        return Run(OSError("out of processes"))

    died = lambda: Run(EngineDied("died"))  # noqa: E731
    assert supervise(monkeypatch, died, refuse, died, limit=2) == (3, "died")
    assert supervise(monkeypatch, died, refuse, refuse, limit=2) == (3, "the engine can't be started: out of processes")


def test_what_keeps_the_first_one_from_starting_ends_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = lambda: Run(ConfigError("no memory"), served=False)  # noqa: E731
    died = lambda: Run(EngineDied("died"))  # noqa: E731
    assert supervise(monkeypatch, wrong) == (1, "no memory")
    assert supervise(monkeypatch, died, wrong, died, limit=2) == (3, "died")


def test_one_that_has_no_time_left_is_waited_for_once_it_is_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the last of several, where those before it have taken the time of all."""
    runs, killed = threading.Event(), threading.Event()

    class Busy(Run):
        def watch(self) -> Exception:
            runs.set()
            assert killed.wait(SOON)
            time.sleep(0.2)
            return self._error

        def kill(self) -> None:
            killed.set()

    monkeypatch.setattr(supervisor, "EngineProcess", lambda *_: Busy(EngineDied("killed")))
    watched = Supervisor(engine_config())
    watched.start()
    assert runs.wait(SOON)
    watched.stop(0.0)
    assert not watched._thread.is_alive()
    assert "failed" not in caplog.text


def test_a_fault_of_the_supervisors_own_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Run:
        raise RuntimeError("a bug")

    assert supervise(monkeypatch, fail) == (1, "the engine's supervisor failed: RuntimeError: a bug")
