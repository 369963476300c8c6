"""A client and an engine process, over a fake worker: requests, deaths, starts that fail, orphans.

Where only the client and the engine's loop matter, the process is a thread.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from lsv.engine import admission
from lsv.engine.messages import Abort, Control, Finish, Hello, Submit
from lsv.engine.orders.order import Drain, ResetPrefixCache
from lsv.engine.orders.sleep import Sleep, WakeUp
from lsv.engine.socket_client import SocketClient
from lsv.engine.supervision.supervisor import RestartPolicy, Supervisor
from lsv.request.media import Array, Media
from lsv.request.outputs import Chunk, RequestRecord
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv_base.errors import BadRequest, ConfigError, EngineDied, PluginError, RequestFailed, Unavailable
from lsv_base.processes.folder import PrivateFolder
from lsv_base.processes.orders import encode_order
from lsv_base.processes.wire import encode_frame
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.engine import engine_config, install_plugin
from lsv_testing.fakes.requests import make_request, make_spec
from lsv_testing.fakes.text import letters
from suite.processes import is_running

from .threads import LoopThread

Start = Callable[..., Awaitable[SocketClient]]

SUPERVISORS: dict[SocketClient, Supervisor] = {}
TOKENIZER = letters(fake_tokens.VOCABULARY)
IN_A_THREAD = pytest.mark.usefixtures("engine_is_a_thread")
"""For tests of clients and the engine's loop, which need no real process."""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake executor is installed for child processes."""
    install_plugin(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


@pytest.fixture
def engine_is_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsv.engine.supervision.process.Child", LoopThread)


@pytest.fixture
async def start(plugin: None) -> AsyncIterator[Start]:
    """Start clients with engines: ``await start(restarts=1, max_queue=…, options={…})``."""
    clients: list[SocketClient] = []

    async def start_client(*, wait: bool = True, restarts: int = 0, media: Any = None, **changes: Any) -> SocketClient:
        config = engine_config(**changes)
        supervisor = Supervisor(config, log_level="DEBUG", restarts=RestartPolicy(restarts, 600.0))
        supervisor.start()
        client = SocketClient(config, supervisor.address, TOKENIZER, media=media)
        SUPERVISORS[client] = supervisor
        clients.append(client)
        await client.start()
        if wait:
            await client.ready()
        return client

    yield start_client
    for client in clients:
        await client.close()
        supervisor = SUPERVISORS.pop(client)
        await asyncio.to_thread(supervisor.stop)
        assert not runs(supervisor)
        assert not supervisor.address.parent.exists()


def runs(of: SocketClient | Supervisor) -> bool:
    supervisor = SUPERVISORS[of] if isinstance(of, SocketClient) else of
    return supervisor.process is not None and supervisor.process.running


def address(client: SocketClient) -> str:
    return str(SUPERVISORS[client].address)


def pid(client: SocketClient) -> int:
    process = SUPERVISORS[client].process
    assert process is not None
    return process.pid


def greedy(count: int | None = 8, **params: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": count, "ignore_eos": True, **params})


def expected(prompt: list[int], count: int) -> list[int]:
    return fake_tokens.expected_output(make_request(0, tuple(prompt), sampling=greedy(count)), 10_000)


async def collect(client: SocketClient, prompt: list[int], params: SamplingParams, name: str = "r") -> list[Chunk]:
    return [chunk async for chunk in client.generate(make_spec(prompt, params, request_id=name))]


async def answer(client: SocketClient, prompt: list[int], params: SamplingParams, name: str = "r") -> list[int]:
    """The token ids alone; how they are spread over chunks depends on how fast the reader is."""
    return [token for chunk in await collect(client, prompt, params, name) for token in chunk.ids]


async def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


@pytest.mark.row("F-340")
async def test_answers_equal_those_of_the_model(start: Start):
    client = await start()
    chunks = await collect(client, [1, 2, 3], greedy())
    ids = [token for chunk in chunks for token in chunk.ids]
    assert ids == expected([1, 2, 3], 8)
    assert "".join(chunk.text for chunk in chunks) == TOKENIZER.decode(ids)
    assert chunks[-1].finish is FinishReason.LENGTH
    assert chunks[0].cached == 0
    assert client.fit is not None
    assert client.fit.max_model_len == 256
    assert client.stats.generation_tokens_total == 8


@pytest.mark.row("F-340")
async def test_the_engine_process_loads_no_torch(start: Start):
    client = await start()
    await collect(client, [1], greedy())
    maps = Path(f"/proc/{pid(client)}/maps").read_text()
    assert "python" in maps
    assert "libtorch" not in maps


@IN_A_THREAD
async def test_sixteen_at_once(start: Start):
    client = await start()
    prompts = [[1, 2, 3, number] for number in range(16)]
    answers = await asyncio.gather(*(answer(client, prompt, greedy(20), f"r{prompt[3]}") for prompt in prompts))
    assert answers == [expected(prompt, 20) for prompt in prompts]


@IN_A_THREAD
async def test_candidates_are_all_delivered(start: Start):
    client = await start()
    chunks = await collect(client, [1, 2], SamplingParams(n=4, max_tokens=5, seed=7, ignore_eos=True))
    for index in range(4):
        own = [chunk for chunk in chunks if chunk.index == index]
        assert [token for chunk in own for token in chunk.ids] == expected([1, 2], 5)
        assert own[-1].finish is FinishReason.LENGTH


@IN_A_THREAD
async def test_a_stop_string_ends_the_answer_in_the_engine_too(start: Start):
    client = await start(options={"fake.delay": 0.005})
    ids = expected([1, 2, 3], 30)
    stop = TOKENIZER.decode(ids[3:5])
    chunks = await collect(client, [1, 2, 3], greedy(200, stop=(stop,)))
    assert "".join(chunk.text for chunk in chunks) == TOKENIZER.decode(ids[:3])
    assert [token for chunk in chunks for token in chunk.ids] == ids[:5]
    assert (chunks[-1].finish, chunks[-1].stop) == (FinishReason.STOP, stop)
    await wait_for(lambda: client.stats.running == 0)
    assert client.stats.generation_tokens_total < 50


@IN_A_THREAD
async def test_stop_ids_and_logprobs(start: Start):
    client = await start()
    ids = expected([1, 2, 3], 30)
    chunks = await collect(client, [1, 2, 3], greedy(30, stop_token_ids=(ids[2],), logprobs=2, prompt_logprobs=1))
    assert (chunks[-1].finish, chunks[-1].stop) == (FinishReason.STOP, ids[2])
    positions = [position for chunk in chunks for position in chunk.logprobs]
    assert [position[0].id for position in positions] == ids[: len(positions)]
    assert {len(position) for position in positions} == {3}
    assert positions[0][0].text == TOKENIZER.token_text(ids[0])
    scored = chunks[0].prompt_logprobs
    assert scored[0] is None
    assert [position[0].id for position in scored[1:]] == [2, 3]


@IN_A_THREAD
async def test_leaving_aborts_at_every_phase(start: Start):
    client = await start(max_num_seqs=1, options={"fake.delay": 0.02})
    running = asyncio.create_task(collect(client, [1], greedy(200), "running"))
    await wait_for(lambda: client.stats.running == 1)
    queued = asyncio.create_task(collect(client, [2], greedy(200), "queued"))
    await wait_for(lambda: client.stats.waiting == 1)
    queued.cancel()
    await wait_for(lambda: client.stats.waiting == 0)
    prefilling = asyncio.create_task(collect(client, [3] * 200, greedy(20), "prefilling"))
    await wait_for(lambda: client.stats.waiting == 1)
    running.cancel()
    await wait_for(lambda: client.stats.waiting == 0)
    prefilling.cancel()
    await wait_for(lambda: client.stats.running == client.stats.waiting == 0)
    assert client.stats.kv_usage == 0.0
    async with aclosing(client.generate(make_spec([5], greedy(200), request_id="left"))) as stream:
        async for _ in stream:
            break
    await wait_for(lambda: client.stats.running == 0)
    assert len(await answer(client, [4], greedy(3))) == 3


@IN_A_THREAD
async def test_records(start: Start):
    client = await start()
    records: list[RequestRecord] = []
    client.on_finished(records.append)
    await collect(client, [1, 2, 3], greedy(6), "whole")
    async with aclosing(client.generate(make_spec([1], greedy(200), request_id="left"))) as stream:
        async for _ in stream:
            break
    whole, left = records
    assert (whole.request_id, whole.prompt_tokens, whole.tokens, whole.finish) == ("whole", 3, 6, FinishReason.LENGTH)
    assert 0 < whole.ttft <= whole.e2e
    assert sum(whole.itl.counts) <= 5
    assert whole.queued >= 0
    assert left.finish is FinishReason.ABORT


@IN_A_THREAD
async def test_refusals_come_before_anything_is_sent(start: Start):
    client = await start()
    with pytest.raises(BadRequest, match=r"maximum context length is 256 tokens\. However, you requested 301"):
        await collect(client, [1] * 300, greedy())
    for prompt, params in (
        ([], greedy()),
        ([97], greedy()),
        ([-1], greedy()),
        ([1], greedy(logprobs=21)),
        ([1], greedy(logit_bias={500: 1.0})),
    ):
        with pytest.raises(BadRequest):
            await collect(client, prompt, params)
    assert await answer(client, [9] * 300 + [1, 2], greedy(4, truncate_prompt_tokens=2)) == expected([1, 2], 4)
    assert len(await answer(client, [1] * 250, greedy(None))) == 6


@IN_A_THREAD
async def test_media_may_weigh_so_much(start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "MOST_MEDIA", 3 << 20)
    client = await start()
    media = Media(b"a" * 32, "image", 0, 1, {"pixels": Array("uint8", (1 << 20,), bytes(1 << 20))})

    async def show(*shown: Media, **params: Any) -> None:
        async for _ in client.generate(make_spec([1, 2], greedy(2, **params), media=shown)):
            pass

    with pytest.raises(BadRequest, match=r"are 4 MiB once prepared, and at most 3 MiB are taken: send fewer"):
        await show(*[media] * 4)
    with pytest.raises(BadRequest, match="the encoder keeps 0"):  # it weighs little enough for the engine to hear of it
        await show(*[media] * 3, n=4, temperature=1.0)
    assert await answer(client, [1, 2, 3], greedy()) == expected([1, 2, 3], 8)


@IN_A_THREAD
async def test_a_long_message_does_not_take_a_step_for_each_piece_of_it(start: Start):
    """A socket holds about 200 KB: fifteen pieces, each of which would wait for a step of its own."""
    client = await start(options={"fake.delay": 0.05})
    media = Media(b"a" * 32, "image", 0, 1, {"pixels": Array("uint8", (3 << 20,), bytes(3 << 20))})
    async with aclosing(client.generate(make_spec([1], greedy(200), request_id="stream"))) as stream:
        await anext(stream)
        began = time.monotonic()
        with pytest.raises(BadRequest, match="the encoder keeps 0"):
            await anext(client.generate(make_spec([1, 2], greedy(2), media=(media,))))
        assert time.monotonic() - began < 0.4


@IN_A_THREAD
async def test_a_full_queue_is_refused_by_the_engine(start: Start):
    client = await start(max_num_seqs=1, max_queue=1, options={"fake.delay": 0.05})
    tasks = [asyncio.create_task(collect(client, [number], greedy(2))) for number in range(4)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {getattr(result, "code", "ok") for result in results} == {"ok", "overloaded"}


@pytest.mark.row("F-977")
@IN_A_THREAD
async def test_vectors(start: Start):
    client = await start()
    (vector,) = await client.encode(make_spec([1, 2, 3], PoolingParams(), request_id="v"))
    assert len(vector) == 4
    prompts = tuple(Prompt(ids=ids) for ids in ((7,), (1, 2, 3), (5, 6)))
    several = await client.encode(RequestSpec(prompts=prompts, pooling=PoolingParams(), request_id="w"))
    assert several[1] == vector
    assert len(set(several)) == 3


@IN_A_THREAD
async def test_prompts_of_one_request(start: Start):
    client = await start()
    prompts = tuple(Prompt(ids=ids) for ids in ((1, 2, 3), (4,), (5, 6)))
    records: list[RequestRecord] = []
    client.on_finished(records.append)
    asked = RequestSpec(prompts=prompts, sampling=greedy(6, n=2, temperature=1.0), request_id="r")
    found: dict[tuple[int, int], list[int]] = {}
    async for chunk in client.generate(asked):
        found.setdefault((chunk.prompt, chunk.index), []).extend(chunk.ids)
    assert sorted(found) == [(prompt, candidate) for prompt in range(3) for candidate in range(2)]
    assert all(found[number, 1] == expected(prompt.ids, 6) for number, prompt in enumerate(prompts))
    assert [(record.prompt_tokens, record.tokens) for record in records] == [(3, 12), (1, 12), (2, 12)]


@IN_A_THREAD
async def test_a_failed_row(start: Start):
    client = await start(options={"fake.fail": 1})
    with pytest.raises(RequestFailed, match="non-finite"):
        await collect(client, [1], greedy())
    assert len(await answer(client, [1], greedy(3))) == 3


async def test_killing_the_engine_fails_requests_within_a_second(start: Start):
    client = await start(options={"fake.delay": 0.05})
    tasks = [asyncio.create_task(collect(client, [number], greedy(200))) for number in range(5)]
    await wait_for(lambda: client.stats.running == 5)
    began = time.monotonic()
    os.kill(pid(client), signal.SIGKILL)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert time.monotonic() - began < 1.0
    assert all(isinstance(result, EngineDied) and "signal 9" in result.message for result in results)
    assert client.status.state == "dead"
    with pytest.raises(EngineDied):
        await collect(client, [1], greedy())


@pytest.mark.parametrize(("fault", "words"), [("fake.die", "the worker died in step 3"), ("fake.crash", "a bug in")])
async def test_a_worker_that_fails_ends_the_engine_with_its_reason(start: Start, fault: str, words: str):
    client = await start(options={fault: 3})
    with pytest.raises(EngineDied, match=words):
        await collect(client, [1], greedy(50))
    await wait_for(lambda: not runs(client))
    assert client.status.state == "dead"
    assert words in client.status.error


async def test_restart(start: Start):
    client = await start(restarts=1)
    place = address(client)
    os.kill(pid(client), signal.SIGKILL)
    await wait_for(lambda: client.status.state != "ready")
    with pytest.raises((Unavailable, EngineDied)):
        await collect(client, [1], greedy())
    await wait_for(lambda: client.status.state == "ready")
    assert address(client) == place
    assert len(await answer(client, [1], greedy(3))) == 3
    os.kill(pid(client), signal.SIGKILL)
    await wait_for(lambda: client.status.state == "dead")
    await wait_for(lambda: not SUPERVISORS[client]._thread.is_alive())  # makes starting a process fail
    assert not runs(client)


class Processing:
    """A media service whose processor is loaded when ``loaded`` is set, or can't be."""

    def __init__(self, error: PluginError | None = None) -> None:
        self.loaded = asyncio.Event()
        self.off: list[Collection[int]] = []
        self._error = error

    def keep_off(self, cores: Collection[int]) -> None:
        self.off.append(cores)

    async def ready(self) -> None:
        await self.loaded.wait()
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        self.loaded.set()


@IN_A_THREAD
async def test_who_takes_media_is_ready_with_the_processor(start: Start):
    media = Processing()
    client = await start(wait=False, media=media)
    await wait_for(lambda: client.status.stage == "processor", 20)
    with pytest.raises(Unavailable, match="loading processor"):
        await answer(client, [1], greedy())
    media.loaded.set()
    await client.ready()
    assert client.fit is not None
    assert media.off == [client.fit.cores]
    assert await answer(client, [1, 2, 3], greedy()) == expected([1, 2, 3], 8)


@IN_A_THREAD
async def test_a_processor_that_can_not_be_loaded_fails_the_start(start: Start):
    media = Processing(PluginError("the processor is broken"))
    media.loaded.set()
    client = await start(wait=False, media=media)
    with pytest.raises(PluginError, match="the processor is broken"):
        await client.ready()
    assert isinstance(client.failure, PluginError)


@IN_A_THREAD
async def test_progress_while_loading(start: Start):
    client = await start(wait=False, options={"fake.load_delay": 0.1})
    with pytest.raises(Unavailable, match="loading"):
        await collect(client, [1], greedy())
    await wait_for(lambda: (client.status.stage, client.status.done, client.status.total) == ("weights", 2, 3))
    await client.ready()


@IN_A_THREAD
async def test_messages_that_come_too_early_do_no_harm(start: Start):
    client = await start(wait=False, options={"fake.load_delay": 0.1})
    await wait_for(lambda: client.status.stage == "weights")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hasty:
        hasty.connect(address(client))
        submit = Submit(id=0, spec=make_spec((1,), greedy(), request_id="early"))
        for message in (Hello(), submit, Finish(0, 0, 1), Abort((0,)), Control(0, *encode_order(ResetPrefixCache()))):
            hasty.sendall(encode_frame(message))
        await client.ready()
    assert len(await answer(client, [1], greedy(3))) == 3


async def test_close_while_loading(start: Start):
    client = await start(wait=False, options={"fake.load_delay": 0.2})
    await wait_for(lambda: client.status.stage == "weights")
    began = time.monotonic()
    await client.close(drain=5.0)
    assert time.monotonic() - began < 2.0
    with pytest.raises(EngineDied, match="has been stopped"):
        await client.ready()


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"options": {"fake.start_error": "there is no such device"}}, ConfigError, "no such device"),
        ({"executor": "fakes"}, ConfigError, "did you mean"),
        ({"plugins": ("core", "nobody")}, PluginError, "nobody"),
    ],
)
async def test_a_start_that_fails_says_why(start: Start, changes: dict[str, Any], kind: type[Exception], words: str):
    client = await start(wait=False, restarts=3, **changes)
    with pytest.raises(kind, match=words):
        await client.ready()
    assert words in client.status.error
    await wait_for(lambda: not runs(client))


async def test_a_reader_who_sleeps_holds_up_nobody(start: Start):
    """A second connection sends requests and never reads; its news is merged and the others go on."""
    client = await start(max_model_len=4096, num_blocks=5000, max_num_seqs=16)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sleeper:
        sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        sleeper.connect(address(client))
        sleeper.sendall(encode_frame(Hello()))
        for id in range(12):
            submit = Submit(id=id, spec=make_spec((id + 1,), greedy(3000, logprobs=20), request_id=f"s{id}"))
            sleeper.sendall(encode_frame(submit))
        assert await answer(client, [1, 2, 3], greedy(50)) == expected([1, 2, 3], 50)
        resident = int(Path(f"/proc/{pid(client)}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident < 400 << 20
    await wait_for(lambda: client.stats.running == 0)


@IN_A_THREAD
async def test_a_connection_that_talks_nonsense_is_dropped(start: Start):
    client = await start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(5.0)
        stranger.connect(address(client))
        stranger.sendall(b"\xff\xff\xff\xff" + b"x" * 100)
        while stranger.recv(100):  # signs of life, until it is dropped
            pass
    assert len(await answer(client, [1], greedy(3))) == 3


@IN_A_THREAD
async def test_close_lets_requests_end(start: Start):
    client = await start(options={"fake.delay": 0.02})
    task = asyncio.create_task(collect(client, [1], greedy(10)))
    await wait_for(lambda: client.stats.running == 1)
    await client.close(drain=5.0)
    assert (await task)[-1].finish is FinishReason.LENGTH
    assert client.status.state == "dead"


@IN_A_THREAD
async def test_requests_are_taken_again_when_who_ordered_to_drain_is_gone(start: Start):
    client = await start(options={"fake.delay": 0.02})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.connect(address(client))
        for message in (Hello(), Control(0, *encode_order(Drain()))):
            other.sendall(encode_frame(message))

        async def is_taken() -> bool:
            try:
                return len(await answer(client, [1], greedy(2))) == 2
            except Unavailable:
                return False

        while await is_taken():
            pass  # the order is on its way
    ends = time.monotonic() + 30
    while not await is_taken():
        assert time.monotonic() < ends


@IN_A_THREAD
async def test_close_without_patience(start: Start):
    client = await start(options={"fake.delay": 0.02})
    task = asyncio.create_task(collect(client, [1], greedy(200)))
    await wait_for(lambda: client.stats.running == 1)
    await client.close(drain=0.05)
    with pytest.raises(Unavailable):
        await task


@pytest.mark.row("F-340")
async def test_the_socket_is_private(start: Start):
    client = await start()
    folder = Path(address(client)).parent
    assert folder.stat().st_mode & 0o777 == 0o700


async def test_an_interrupt_of_the_terminal_is_not_for_the_engine(start: Start):
    client = await start()
    os.kill(pid(client), signal.SIGINT)
    assert os.getpgid(pid(client)) != os.getpgid(0)
    assert len(await answer(client, [1], greedy(3))) == 3


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_child_dies_with_its_parent(plugin: None, how: signal.Signals):
    code = (
        "import sys, time\n"
        "from lsv.engine.supervision.supervisor import Supervisor\n"
        "from lsv_testing.fakes.engine import engine_config\n"
        "supervisor = Supervisor(engine_config())\n"
        "supervisor.start()\n"
        "while supervisor.process is None: time.sleep(0.01)\n"
        "print(supervisor.process.pid, supervisor.address, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        child, place = parent.stdout.readline().split()
        parent.send_signal(how)
        parent.wait()
    deadline = time.monotonic() + 30.0
    while is_running(int(child)):
        assert time.monotonic() < deadline, "the engine outlived its parent"
        time.sleep(0.02)
    PrivateFolder().remove()
    assert not Path(place).parent.exists()


@pytest.mark.row("F-385", "F-952", "F-379", "F-380", "F-384", "F-401", "F-946")
async def test_start_log(start: Start, capfd: pytest.CaptureFixture[str]):
    client = await start(max_model_len=200, options={"fake.load_delay": 0.01})
    await collect(client, [1], greedy(3), "abc")
    await client.close()
    log = capfd.readouterr().err
    assert "FAKE KV cache size: 2,048 tokens" in log
    assert "Maximum concurrency for 200 tokens per request: 10.24x" in log
    assert "# FAKE blocks: 512 of 4 tokens" in log
    assert re.search(r"Loading model weights took \d\.\d{4} GiB, the KV cache takes \d\.\d{4} GiB", log)
    assert "Loading the model took" in log
    assert client.config.fingerprint() in log
    assert "platform fake, dtype float32, attention fake" in log
    assert "req=abc" in log


@IN_A_THREAD
async def test_all_clients_know_that_the_engine_sleeps(start: Start):
    client = await start(sleep_mode=True, options={"fake.delay": 0.005})
    other = SocketClient(client.config, SUPERVISORS[client].address, TOKENIZER)
    await other.start()
    await other.ready()
    running = asyncio.create_task(answer(client, [1, 2], greedy(500)))
    await wait_for(lambda: client.stats.running == 1)
    await other.order(Sleep())
    with pytest.raises(Unavailable, match="put to sleep"):
        await running
    for one in (client, other):
        await wait_for(lambda one=one: one.status.state == "sleeping")
        assert one.status.stage == "weights, kv_cache"
        with pytest.raises(Unavailable, match="wake it up"):
            await answer(one, [1], greedy())
    late = SocketClient(client.config, SUPERVISORS[client].address, TOKENIZER)
    await late.start()
    await wait_for(lambda: late.status.state == "sleeping")
    await client.order(WakeUp(("weights",)))
    await wait_for(lambda: other.status.stage == "kv_cache")
    await client.order(WakeUp())
    await wait_for(lambda: late.status.state == "ready")
    assert await answer(other, [1, 2], greedy()) == expected([1, 2], 8)
    for one in (other, late):
        await one.close()
