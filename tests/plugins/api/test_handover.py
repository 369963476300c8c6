"""Requests that two servers share, as vLLM's proxies send them."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lsv.config import Offload, Transfers
from lsv_base.processes.ports import free_port
from lsv_testing.fakes.client import FakeClient, fake_config

NOTHING = {"remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None}
ASK = {"do_remote_decode": True, "do_remote_prefill": False, **NOTHING}
PEERS = ("10.0.0.1:5600", "[::1]:5600")


def engine(*, produces: bool = False, consumes: bool = False) -> FakeClient:
    transfers = Transfers(
        produces=produces, consumes=consumes, host="10.0.0.1", port=5600, peers=PEERS if consumes else (), timeout=1.0
    )
    return FakeClient(fake_config(offload=Offload(transport="files", transfers=transfers)))


@pytest.mark.row("F-157")
@pytest.mark.parametrize("kind", ["chat", "complete"])
async def test_a_producers_answer_says_what_the_consumer_is_to_be_told(kind, start):
    first, second = await start(engine(produces=True)), await start(engine(consumes=True))
    body = (await getattr(first, kind)(max_tokens=1, kv_transfer_params=ASK)).json()
    told = body["kv_transfer_params"]
    assert told == {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "10.0.0.1:5600",
        "remote_block_ids": [], "remote_host": "10.0.0.1", "remote_port": 5600,
    }  # fmt: skip
    assert first.engine.requests[-1].hand_on
    answer = await getattr(second, kind)(max_tokens=4, kv_transfer_params={**told, "tp_size": 1})
    assert answer.status_code == 200
    assert second.engine.requests[-1].kv_peer == PEERS[0]
    assert not second.engine.requests[-1].hand_on
    plain = await getattr(second, kind)(max_tokens=4, kv_transfer_params={})
    assert not plain.json().get("kv_transfer_params")
    assert second.engine.requests[-1].kv_peer == ""


def remote(host: object = "10.0.0.1", port: object = 5600, **more: object) -> dict[str, object]:
    return {"kv_transfer_params": {"do_remote_prefill": True, "remote_host": host, "remote_port": port}, **more}


@pytest.mark.parametrize(("host", "port"), [("::1", "5600"), ("[::1]", 5600), ("10.0.0.1", "5600")])
async def test_producers_are_found_however_they_are_written(host, port, start):
    site = await start(engine(consumes=True))
    assert (await site.complete(**remote(host, port))).status_code == 200
    assert site.engine.requests[-1].kv_peer in PEERS


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (remote("169.254.169.254", 80), "is not listed in"),
        (remote("10.0.0.1", 22), "is not listed in"),
        (remote("10.0.0.1:5600@evil", 5600), "is not listed in|needs remote_host"),
        (remote("x" * 5000), "is not listed in"),
        (remote(None), "needs remote_host and remote_port"),
        (remote(port=None), "needs remote_host and remote_port"),
        (remote(port="5600/"), "needs remote_host and remote_port"),
        (remote(port=1 << 80), "kv_transfer_params|needs remote_host"),
        (remote(use_beam_search=True, n=2), "use_beam_search"),
        ({"kv_transfer_params": ASK}, "hands nothing on"),
        ({"kv_transfer_params": {**ASK, "do_remote_prefill": True}}, "not both"),
        ({"kv_transfer_params": {"do_remote_prefill": "yes"}}, "expected bool"),
    ],
)
async def test_what_can_not_be_is_refused(body, said, start):
    site = await start(engine(consumes=True))
    answer = await site.complete(**body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert any(one in error["message"] for one in said.split("|"))
    assert len(error["message"]) < 400
    assert error["param"].startswith("kv_transfer_params")
    assert not site.engine.requests


async def test_servers_without_a_part_refuse_it(start):
    for site in (await start(), await start(engine(produces=True))):
        answer = await site.complete(**remote())
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter")
    answer = await site.complete(kv_transfer_params=ASK, stream=True)
    assert "leave stream out" in answer.json()["error"]["message"]


PROXY = Path(__file__).resolve().parents[3] / "deploy" / "disaggregated" / "proxy.py"


@pytest.fixture
def proxy() -> Iterator[Callable[[str, str], str]]:
    """Start a proxy before a producer and a consumer: its address."""
    spec = importlib.util.spec_from_file_location("proxy", PROXY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: list[Any] = []

    def begin(producers: str, consumers: str) -> str:
        server = module.make_server("127.0.0.1", 0, producers, consumers)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        made.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield begin
    for server in made:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_proxy_sends_prompts_to_the_one_and_requests_to_the_other(stream, start, proxy):
    first, second = await start(engine(produces=True)), await start(engine(consumes=True))
    at = proxy(first.server.address, second.server.address)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_completion_tokens": 5, "stream": stream,
            "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "rude", "remote_port": 1}}  # fmt: skip
    for pending in (False, True):  # once it knows where the producer hands its KV cache on, it asks both at a time
        answer = await second.http.post(at + "/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert ("data: [DONE]" in answer.text) is stream
        assert second.engine.requests[-1].kv_pending is pending
    while len(first.engine.requests) < 2:
        await asyncio.sleep(0.001)
    assert (first.engine.requests[-1].hand_on, first.engine.requests[-1].sampling.max_tokens) == (True, 1)
    assert (second.engine.requests[-1].kv_peer, second.engine.requests[-1].sampling.max_tokens) == (PEERS[0], 5)
    assert (await second.http.get(at + "/v1/models")).json()["data"][0]["id"] == "fake"
    assert (await second.http.post(at + "/v1/completions", content=b"{")).status_code == 400


async def test_a_proxy_goes_on_without_producers(start, proxy):
    site = await start(engine(consumes=True))
    at = proxy(f"http://127.0.0.1:{free_port()}", site.server.address)
    assert (await site.http.post(at + "/v1/completions", json={"prompt": "Hi"})).status_code == 200
    assert site.engine.requests[-1].kv_peer == ""
    alone = proxy(site.server.address, f"http://127.0.0.1:{free_port()}")
    assert (await site.http.post(alone + "/v1/completions", json={"prompt": "Hi"})).status_code == 502
