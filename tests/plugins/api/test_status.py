"""What the server tells about itself: models, version, index, OpenAPI; and the manifest."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import ModuleType

import pytest
from sanic.response import text

from lsv import hookimpl, plugins
from lsv.engine.client import EngineStatus
from lsv.offers import load_object
from lsv_api import hookspecs, plugin
from lsv_api.app import create_app
from lsv_api.contracts import load_contracts
from lsv_api.server import Server, announce
from lsv_testing.fakes.client import FakeClient, fake_config

JSON = {"accept": "application/json"}
ROUTES = [route for declared in load_contracts({}) for route in declared.contract.routes]


@pytest.mark.row("F-099", "F-111")
async def test_models(start):
    site = await start(names=("fake", "org/alias"))
    body = (await site.http.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["fake", "org/alias"]
    assert body["data"][0]["max_model_len"] == 512
    assert body["data"][0]["modalities"] == ["text"]
    assert "/models/fake" not in str(body), "no paths of the server's machine"
    for path in ("/v1/models/org/alias", "/v1/models/org%2Falias"):
        assert (await site.http.get(path)).json()["id"] == "org/alias"


@pytest.mark.row("F-165", "F-186", "F-112")
async def test_answers_tell_the_first_name_whichever_was_asked_for(start):
    site = await start(names=("fake", "org/alias"))
    for model in ({"model": "fake"}, {"model": "org/alias"}, {}):
        for reply in (await site.chat(**model), await site.complete(**model)):
            assert reply.json()["model"] == "fake"
        streamed = (await site.chat(stream=True, **model)).text
        assert '"model":"fake"' in streamed
        assert "org/alias" not in streamed
    assert (await site.chat(model="other")).status_code == 404


async def test_a_model_answers_to_its_path_and_no_answer_shows_that(start):
    path = "/srv/models/fake.gguf"
    site = await start(FakeClient(fake_config(unlisted_names=(path,))))
    asked = await site.chat(model=path)
    assert (asked.status_code, asked.json()["model"]) == (200, "fake")
    wrong = await site.chat(model="other")
    assert "this server has: fake" in wrong.json()["error"]["message"]
    routes = ("/v1/models", "/health", "/version", "/metrics", "/", "/api/tags", "/api/ps")
    told = [(await site.http.get(route, headers=JSON)).text for route in routes]
    told.append((await site.post("/api/show", model="fake")).text)
    assert "/srv" not in "".join((asked.text, wrong.text, *told))


@pytest.mark.row("F-105")
async def test_version_index_and_probes(site):
    body = (await site.http.get("/version")).json()
    assert body["fingerprints"] == {"fake": site.engine.config.fingerprint()}
    assert body["version"]
    assert (await site.http.get("/", headers=JSON)).json()["models"] == ["fake"]
    assert (await site.http.get("/health")).json()["status"] == "ready"
    head = await site.http.head("/health")
    assert (head.status_code, head.content) == (200, b"")


async def test_health_tells_of_each_replica(start):
    both = [FakeClient(), FakeClient()]
    both[1].status = EngineStatus(state="loading", stage="restarting", error="it was killed")
    site = await start(type("Front", (FakeClient,), {"replicas": both})())
    (model,) = (await site.http.get("/health")).json()["models"]
    assert model["state"] == "ready"
    assert [one["state"] for one in model["replicas"]] == ["ready", "loading"]
    assert model["replicas"][1]["error"] == "it was killed"
    (alone,) = (await (await start()).http.get("/health")).json()["models"]
    assert "replicas" not in alone


async def test_openapi(start):
    document = (
        await (await start(api_keys=("k",))).http.get("/openapi.json", headers={"authorization": "Bearer k"})
    ).json()
    assert document["openapi"].startswith("3.1")
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    # the model does not transcribe
    count = len([route for route in ROUTES if not route.transcribes]) + len(("/openapi.json",))
    assert len(operations) == count
    assert len({operation["operationId"] for operation in operations}) == count
    assert document["paths"]["/v1/models/{name}"]["get"]["parameters"][0]["name"] == "name"
    assert "security" not in document["paths"]["/live"]["get"]
    assert document["paths"]["/v1/completions"]["post"]["security"] == [{"key": []}]
    chat = document["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["messages"]
    assert {"temperature", "top_k", "documents", "stream_options"} <= set(chat["properties"])
    number, null = chat["properties"]["temperature"]["anyOf"]
    assert (number["minimum"], number["maximum"], null) == (0.0, 100.0, {"type": "null"})
    answers = document["paths"]["/v1/completions"]["post"]["responses"]["200"]["content"]
    event, end = answers["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
    assert end == {"const": "[DONE]"}
    assert [kind["$ref"].rpartition("/")[2] for kind in event["contentSchema"]["anyOf"]] == [
        "CompletionResponse", "ErrorResponse",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "record"),
    [("/v1/chat/completions", "ErrorResponse"), ("/v1/messages", "MessagesError"), ("/api/chat", "OllamaError")],
)
async def test_errors_are_described_in_the_form_of_their_contract(site, path, record):
    operation = (await site.http.get("/openapi.json")).json()["paths"][path]["post"]
    schema = operation["responses"]["default"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": f"#/components/schemas/{record}"}


async def test_openapi_references_resolve(site):
    document = (await site.http.get("/openapi.json")).json()

    def references(node):
        if isinstance(node, dict):
            yield from ([node["$ref"]] if "$ref" in node else [])
            node = list(node.values())
        if isinstance(node, list):
            for item in node:
                yield from references(item)

    found = set(references(document))
    assert found
    for reference in found:
        assert reference.rsplit("/", 1)[1] in document["components"]["schemas"]


def test_manifest():
    (offer,) = plugin.lsv_frontends()
    assert (offer.name, offer.default) == ("api", True)
    assert load_object(offer.load).__name__ == "serve"
    assert plugin.api == 2
    assert plugin.hookspecs is hookspecs
    assert all(setting.name.startswith("api.") for setting in plugin.lsv_settings())


def test_the_manifest_is_light_and_the_server_needs_no_torch():
    for module, absent in (
        ("lsv_api.plugin", {"sanic", "prometheus_client"}),
        ("lsv_api.server", {"torch", "transformers"}),
    ):
        check = f"import sys, {module}; sys.exit(len(sys.modules.keys() & {absent}))"
        subprocess.run([sys.executable, "-c", check], check=True)


async def test_other_plugins_extend_the_application(start, monkeypatch):
    site = await start(api_keys=("k",))
    third = ModuleType("third")
    third.api = 2

    @hookimpl
    def lsv_api_app_created(app, client):
        app.add_route(lambda request: text(client.config.served_names[0]), "/third", name="third")

    third.lsv_api_app_created = lsv_api_app_created
    found = plugins.load(["api"])
    found.add(plugins.Origin("third"), third)
    monkeypatch.setattr(plugins, "load", lambda names: found)
    app = create_app(site.service, site.options)
    announce(app, site.engine)
    server = Server(site.service, site.options, app)
    task = asyncio.create_task(server.run())
    while not server.address:
        await asyncio.sleep(0.01)
    assert (await site.http.get(f"{server.address}/third")).status_code == 401
    reply = await site.http.get(f"{server.address}/third", headers={"authorization": "Bearer k"})
    assert reply.text == "fake"
    server.stop()
    await task


async def test_a_route_of_another_plugin_that_returns_no_response_is_named(start, caplog):
    site = await start()
    server = Server(site.service, site.options, create_app(site.service, site.options))
    server._app.add_route(lambda request: 42, "/third", name="third")
    task = asyncio.create_task(server.run())
    while not server.address:
        await asyncio.sleep(0.01)
    reply = await site.http.get(f"{server.address}/third")
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "internal_error")
    assert "internal error in GET /third" in caplog.text
    assert "must return a response, got int" in caplog.text
    server.stop()
    await task
