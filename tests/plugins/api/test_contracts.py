"""Contracts of other plugins: routes that get everything that the server's own get."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from lsv import hookimpl, plugins
from lsv_api.contract import Contract, ContractOffer, Route
from lsv_api.contracts import load_contracts
from lsv_base.errors import BadRequest, PluginError

HOOKS = Path(__file__).parents[3] / "docs" / "hooks.md"
KEY = {"x-api-key": "k"}


class Greeted(msgspec.Struct):
    text: str


class Greeting(msgspec.Struct):
    text: str


def own_form(status: int, body: Any) -> tuple[int, Any]:
    return status + 30, {"wrong": body.message}


async def greet(exchange: Any) -> Greeting:
    body = await exchange.body(Greeted)
    return Greeting(exchange.api.settings["mine.greeting"] + body.text)


async def refuse(exchange: Any) -> Greeting:
    raise BadRequest("text is too long", param="text")


async def return_42(exchange: Any) -> Any:
    return 42


def make(settings: Mapping[str, Any]) -> Contract:
    return Contract(
        routes=[
            Route(method="POST", path="/mine", handler=greet, summary="Greet", request=Greeted, response=Greeting),
            Route(method="POST", path="/mine/refused", handler=refuse, summary="Refuse", errors=own_form),
            Route(method="GET", path="/mine/42", handler=return_42, summary="Return what no handler may"),
        ]
    )


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a plugin called mine that offers a contract."""

    def install(make: Any, path: str = "lsv_mine_contract:make") -> None:
        module, manifest = ModuleType("lsv_mine_contract"), ModuleType("mine")
        module.make = make  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "lsv_mine_contract", module)
        manifest.api = 2  # type: ignore[attr-defined]

        @hookimpl
        def lsv_routes() -> Iterator[ContractOffer]:
            yield ContractOffer("mine", path)

        manifest.lsv_routes = lsv_routes  # type: ignore[attr-defined]
        found = plugins.load()
        found.add(plugins.Origin("mine"), manifest)
        monkeypatch.setattr(plugins, "load", lambda names: found)

    return install


async def test_routes_of_others_have_key_settings_log_metrics_and_description(offer, start, caplog) -> None:
    offer(make)
    site = await start(api_keys=("k",), settings={"mine.greeting": "Hello "})
    assert (await site.http.post("/mine", json={"text": "you"})).status_code == 401
    with caplog.at_level(logging.INFO, "lsv.api"):
        reply = await site.http.post("/mine", json={"text": "you"}, headers=KEY)
    assert reply.json() == {"text": "Hello you"}
    assert "POST /mine 200" in caplog.text
    refused = await site.http.post("/mine", json={}, headers=KEY)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "text")
    described = (await site.http.get("/openapi.json", headers=KEY)).json()
    assert "/mine" in described["paths"]
    assert "Greeted" in described["components"]["schemas"]
    counted = (await site.http.get("/metrics", headers=KEY)).text
    assert 'lsv:http_requests_total{route="/mine",status="200"} 1.0' in counted


async def test_errors_have_the_form_of_their_contract(offer, start) -> None:
    offer(make)
    site = await start(api_keys=("k",))
    reply = await site.http.post("/mine/refused", json={}, headers=KEY)
    assert (reply.status_code, reply.json()) == (430, {"wrong": "text is too long"})
    denied = await site.http.post("/mine/refused", json={})
    assert denied.status_code == 431
    assert denied.json()["wrong"].startswith("Missing or wrong API key")


async def test_what_no_handler_may_return_is_blamed_on_its_contract(offer, start, caplog) -> None:
    offer(make)
    site = await start()
    assert (await site.http.get("/mine/42")).status_code == 500
    assert "GET /mine/42 of the contract mine of plugin mine" in caplog.text
    assert "must return a record, a response or None, got int" in caplog.text


async def test_a_contract_is_open_while_the_server_runs(offer, start) -> None:
    seen = []

    @asynccontextmanager
    async def run(api: Any) -> AsyncIterator[None]:
        seen.append("open")
        yield
        seen.append("closed")

    offer(lambda settings: Contract(routes=make(settings).routes, run=run))
    site = await start()
    assert seen == ["open"]
    site.server.stop()
    await site.task
    assert seen == ["open", "closed"]


TAKEN = Route(method="GET", path="/v1/models", handler=return_42, summary="Take a route")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ([], "must return a lsv_api.contract.Contract of Routes"),
        (
            Contract(routes=[TAKEN]),
            "mine of plugin mine declares GET /v1/models, which the contract openai of plugin api has",
        ),
    ],
)
def test_contracts_that_cannot_be_served_are_refused(offer, made: object, why: str) -> None:
    offer(lambda settings: made)
    with pytest.raises(PluginError, match=re.escape(why)):
        load_contracts({})


def test_a_contract_that_cannot_be_loaded_is_named(offer) -> None:
    offer(make, "lsv_mine_contract:gone")
    with pytest.raises(PluginError, match="'mine' of plugin mine can't be loaded from lsv_mine_contract:gone"):
        load_contracts({})


async def test_the_example_of_the_documentation_answers(offer, start) -> None:
    examples = re.findall(r"```python\n(.*?)```", HOOKS.read_text("utf-8"), re.DOTALL)
    code = next(example for example in examples if "class Question" in example)
    space: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, str(HOOKS), "exec"), space)
    offer(space["make"])
    site = await start(settings={"mine.before": ""})
    plain = (await site.chat()).json()
    reply = await site.http.post("/mine/ask", json={"text": "Hi"})
    assert reply.json() == {
        "text": plain["choices"][0]["message"]["content"],
        "tokens": plain["usage"]["completion_tokens"],
    }
