"""Leaving clients, silent streams, draining, dying engines, and the process as a whole."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import time
import weakref

import httpx2
import pytest
from sanic import Request
from sanic.compat import Header

from lsv.engine.client import EngineStatus
from lsv_api.http.context import Exchange
from lsv_base.errors import ConfigError, EngineDied
from suite.waiting import until


@pytest.mark.row("F-090")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queued", "generating"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_client_that_leaves_aborts_its_request(site, stream, phase, path):
    site.engine.answer = "x" * 10_000
    site.engine.pace = 0.01
    if phase == "queued":
        site.engine.gate.clear()
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "prompt": ["a", "b"],
        "stream": stream,
        "max_tokens": 400,
    }
    del body["messages" if path == "/v1/completions" else "prompt"]
    task = asyncio.create_task(site.post(path, **body))
    await until(lambda: site.engine.requests if phase == "queued" else site.engine.generated)
    task.cancel()
    await until(lambda: site.engine.aborted)
    await until(lambda: site.app.ctx.api.traffic.running == 0)
    assert all(record.finish == "abort" for record in site.engine.finished)
    counted = [line for line in site.app.ctx.api.metrics.text().decode().splitlines() if "http_requests_total{" in line]
    assert counted == [f'lsv:http_requests_total{{route="{path}",status="499"}} 1.0']


async def test_leaving_in_the_middle_of_a_stream(site):
    site.engine.answer, site.engine.pace = "x" * 400, 0.01
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with site.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        async for line in reply.aiter_lines():
            if "x" in line:
                break
    await until(lambda: site.engine.aborted)


async def test_a_request_is_freed_without_the_collector(site):
    """What is known about a request hangs on it and needs it, too: a cycle would keep both until it is found."""
    request = Request(b"/", Header(), "1.1", "GET", None, site.app)
    request.ctx.exchange = Exchange(request, site.app.ctx.api)
    watched = weakref.ref(request)
    del request
    assert watched() is None


async def test_a_silent_stream_gets_heartbeats(start):
    site = await start(heartbeat=0.05)
    site.engine.gate.clear()
    began, text = time.monotonic(), ""
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 2}
    async with site.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        async for piece in reply.aiter_text():
            text += piece
            if text.count(": ping\n\n") == 2:
                site.engine.gate.set()
    assert text.startswith(": ping\n\n")
    assert 2 <= text.count(": ping\n\n") <= (time.monotonic() - began) / 0.05
    assert text.endswith("data: [DONE]\n\n")
    site.engine.pace = 0.12
    later = (await site.chat(stream=True, max_tokens=3)).text
    assert ": ping\n\n" in later[later.index('"content":"H"') : later.index('"content":"l"')]


async def test_an_error_after_a_heartbeat_comes_as_an_event(start):
    site = await start(heartbeat=0.05)
    site.engine.pace = 0.2
    site.engine.failure, site.engine.fail_after = EngineDied("gone"), 1
    reply = await site.chat(stream=True)
    assert reply.status_code == 200
    assert '"code":"engine_died"' in reply.text
    assert reply.text.endswith("data: [DONE]\n\n")


async def test_the_official_client_reads_heartbeats(start):
    site = await start(heartbeat=0.02)
    site.engine.pace = 0.05
    stream = await site.openai.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "Hi"}], stream=True, max_tokens=3
    )
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hel"


async def test_draining(start):
    site = await start(drain_timeout=10)
    site.engine.pace = 0.02
    running = asyncio.create_task(site.chat(stream=True))
    await until(lambda: site.engine.requests)
    site.server.stop()
    await until(lambda: site.app.ctx.api.traffic.draining)
    refused = await site.chat()
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    assert refused.json()["error"]["code"] == "draining"
    assert (await site.http.get("/live")).status_code == 200
    assert (await site.http.get("/health")).json()["status"] == "draining"
    assert (await running).text.endswith("data: [DONE]\n\n")
    await asyncio.wait_for(site.task, 5)
    assert not site.engine.aborted


async def test_drain_timeout_and_second_signal(start):
    for options, stops in (({"drain_timeout": 0.2}, 1), ({"drain_timeout": 60}, 2)):
        site = await start(**options)
        site.engine.gate.clear()
        running = asyncio.create_task(site.chat())
        await until(lambda site=site: site.engine.requests)
        for _ in range(stops):
            site.server.stop()
        await asyncio.wait_for(site.task, 5)
        assert site.engine.aborted
        with pytest.raises(httpx2.HTTPError):
            await running


@pytest.mark.row("F-119")
async def test_a_dead_engine_ends_the_server(start):
    site = await start()
    site.engine.status = EngineStatus(state="dead", error="killed by a test")
    with pytest.raises(EngineDied, match="killed by a test"):
        await asyncio.wait_for(asyncio.shield(site.task), 5)


async def test_a_taken_port(start, site):
    port = int(site.server.address.rsplit(":", 1)[1])
    other = await start()
    other.server._options = type(other.server._options)(port=port)
    with pytest.raises(ConfigError, match=str(port)):
        await other.server.run()


PROGRAM = textwrap.dedent(
    """
    import asyncio, logging, uvloop
    from lsv.engine.client import EngineStatus, Service
    from lsv_testing.fakes.client import FakeClient
    from lsv_api.frontend import serve

    async def main():
        client = FakeClient(answer="x" * 100)
        client.pace = 0.02
        client.status = EngineStatus(state="loading", stage="weights", done=1, total=2)
        asyncio.get_running_loop().call_later(0.3, setattr, client, "status", EngineStatus(state="ready"))
        await serve(Service({"fake": client}), {"host": "127.0.0.1", "port": 0, "drain_timeout": 20.0})
        print("left", client.aborted, flush=True)

    logging.basicConfig(level=logging.INFO)
    {run}(main())
    """
)


def start_program(run):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{run}", run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    line = process.stdout.readline().strip()
    assert line.startswith("lsv is ready on http://127.0.0.1:"), line
    assert process.stdout.readline().startswith("try: curl ")
    return process, line.removeprefix("lsv is ready on ")


@pytest.fixture(params=["asyncio.run", "uvloop.run"])
def program(request):
    process, address = start_program(request.param)
    yield process, address
    process.kill()
    process.wait()
    process.stdout.close()


def test_sigterm_lets_a_stream_end(program):
    process, address = program
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with (
        httpx2.Client(base_url=address, timeout=20) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        lines = reply.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert sum('"content":"x"' in line for line in rest) == 100
    assert "data: [DONE]" in rest
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 0
    assert out == "left []\n", "nothing more is said, and nothing aborted"


def test_a_second_signal_stops_at_once(program):
    process, address = program
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with (
        httpx2.Client(base_url=address, timeout=20) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        lines = reply.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=5)
    assert process.returncode == 0
    assert "chatcmpl-" in out
