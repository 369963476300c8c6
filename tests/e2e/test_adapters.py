"""Adapters as a server's users meet them: named like models, loaded and unloaded while others are answered."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import APIStatusError, AsyncOpenAI, NotFoundError, OpenAI

import lsv_demo
from lsv_testing.adapters import linear_layers, write_adapter

from .conftest import Server

pytestmark = pytest.mark.xdist_group("adapters")

CHECKPOINT = Path(lsv_demo.__file__).parent / "checkpoint"
COUNT = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of four adapters, large enough to change every answer."""
    folder, modules = tmp_path_factory.mktemp("adapters"), list(linear_layers(CHECKPOINT, ("tower",)))
    for number, name in enumerate(("one", "two", "three", "four")):
        write_adapter(folder / name, CHECKPOINT, modules, seed=number, spread=0.12)
    return folder


@pytest.fixture(scope="module")
def adapting(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two slots, two adapters from the start, and a folder of others."""
    listed = json.dumps({"name": "b", "path": str(folder / "two"), "base_model_name": "lsv-demo"})
    server = Server(
        tmp_path_factory.mktemp("server") / "log", "lsv-demo", "--enable-lora", "--max-loras", "2",
        "--lora-modules", f"a={folder / 'one'}", listed, "--lora-resolver-cache-dir", str(folder),
        "--allow-runtime-lora-updating",
    )  # fmt: skip
    server.wait_until_ready()
    yield server
    server.stop()


def client_of(server: Server) -> OpenAI:
    return server.client()


def post(server: Server, path: str, **body: object) -> tuple[int, str]:
    request = urllib.request.Request(
        server.url + path, json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()


def complete(server: Server, model: str) -> str:
    made = client_of(server).completions.create(
        model=model, prompt="Hello, what is", max_tokens=COUNT, temperature=0, extra_body={"ignore_eos": True}
    )
    assert made.model == model
    return made.choices[0].text


@pytest.mark.row("F-187", "F-206", "F-288", "F-725", "F-099")
def test_adapters_are_named_like_models(adapting: Server, folder: Path) -> None:
    cards = {card.id: card for card in client_of(adapting).models.list().data}
    assert {"lsv-demo", "a", "b"} <= cards.keys()
    assert (cards["a"].parent, cards["a"].root) == ("lsv-demo", str(folder / "one"))
    assert (cards["lsv-demo"].parent, cards["lsv-demo"].root) == (None, "lsv-demo")
    assert client_of(adapting).models.retrieve("b").parent == "lsv-demo"
    assert len({complete(adapting, model) for model in ("lsv-demo", "a", "b")}) == 3
    chat = client_of(adapting).chat.completions.create(
        model="a", messages=[{"role": "user", "content": "Who are you?"}], max_tokens=4
    )
    assert chat.model == "a"


def test_unknown_names_are_not_found(adapting: Server) -> None:
    with pytest.raises(NotFoundError) as caught:
        complete(adapting, "nobody")
    assert "lsv-demo" in caught.value.message
    with pytest.raises(NotFoundError):
        complete(adapting, "../one")


def test_a_folder_of_adapters_is_served_by_name(adapting: Server) -> None:
    assert complete(adapting, "one") == complete(adapting, "a")
    assert "one" in {card.id for card in client_of(adapting).models.list().data}


def test_what_can_not_be_loaded_is_refused(adapting: Server, folder: Path, tmp_path: Path) -> None:
    status, text = post(adapting, "/v1/load_lora_adapter", lora_name="a", lora_path=str(folder / "two"))
    assert (status, "is taken" in text) == (400, True)
    status, text = post(adapting, "/v1/load_lora_adapter", lora_name="x", lora_path=str(tmp_path))
    assert (status, "adapter_config.json" in text) == (400, True)
    assert post(adapting, "/v1/load_lora_adapter", lora_name="x")[0] == 400
    assert post(adapting, "/v1/unload_lora_adapter", lora_name="x")[0] == 404


def metrics_of(server: Server) -> str:
    with urllib.request.urlopen(server.url + "/metrics", timeout=30) as response:
        return response.read().decode()


def test_metrics_tell_routers_of_adapters(adapting: Server) -> None:
    """A stream through an adapter is running for as long as it is read slowly."""
    stream = client_of(adapting).completions.create(
        model="a", prompt="Hello", max_tokens=1500, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    labels = 'engine="0",max_lora="2",model_name="lsv-demo",running_lora_adapters="a",waiting_lora_adapters=""'
    running = f"vllm:lora_requests_info{{{labels}}}"
    assert running in metrics_of(adapting)
    stream.close()


async def test_loading_and_unloading_under_load_loses_nothing(adapting: Server, folder: Path) -> None:
    expected = {model: complete(adapting, model) for model in ("lsv-demo", "a", "b", "three")}
    changes = 0

    async def change() -> None:
        nonlocal changes
        for _ in range(6):
            status, text = await asyncio.to_thread(
                post, adapting, "/v1/load_lora_adapter", lora_name="hot", lora_path=str(folder / "four")
            )
            assert (status, text) == (200, "Success: LoRA adapter 'hot' added successfully.")
            await asyncio.to_thread(complete, adapting, "hot")
            status, text = await asyncio.to_thread(post, adapting, "/v1/unload_lora_adapter", lora_name="hot")
            assert (status, text) == (200, "Success: LoRA adapter 'hot' removed successfully.")
            changes += 1

    async with AsyncOpenAI(base_url=adapting.url + "/v1", api_key="EMPTY", max_retries=0) as client:

        async def ask(model: str) -> None:
            for _ in range(4):
                stream = await client.completions.create(
                    model=model, prompt="Hello, what is", max_tokens=COUNT, temperature=0, stream=True,
                    extra_body={"ignore_eos": True},
                )  # fmt: skip
                text = "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])
                assert text == expected[model]

        await asyncio.gather(change(), *(ask(model) for model in expected for _ in range(3)))
    assert changes == 6
    with pytest.raises(APIStatusError):
        await asyncio.to_thread(complete, adapting, "hot")


@pytest.mark.xdist_group("server")
def test_a_server_without_adapters_says_so(server: Server, folder: Path) -> None:
    status, text = post(server, "/v1/load_lora_adapter", lora_name="x", lora_path=str(folder / "one"))
    assert (status, "--allow-runtime-lora-updating" in text) == (403, True)
    assert "lora_requests_info" not in metrics_of(server)
