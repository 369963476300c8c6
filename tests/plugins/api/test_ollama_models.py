"""Ollama's routes about models: names with tags, what is shown of models, and what is refused."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from lsv.engine.client import EngineStatus
from lsv_testing.fakes.client import FakeClient

USER = [{"role": "user", "content": "Hi"}]


async def test_a_name_and_its_latest_are_one_model(start):
    site = await start(names=("fake", "org/other:latest", "third:8b"))
    for name in ("fake", "fake:latest", "org/other", "org/other:latest", "third:8b"):
        bodies = {
            "/api/chat": {"messages": USER},
            "/api/generate": {"prompt": "Hi"},
            "/api/embed": {"input": "Hi"},
            "/api/embeddings": {"prompt": "Hi"},
            "/api/show": {},
            "/api/pull": {},
        }
        for path, body in bodies.items():
            reply = await site.post(path, model=name, stream=False, **body)
            assert (reply.status_code, path, name) == (200, path, name)
            assert reply.json().get("model", name) == name
    for name in ("third", "third:latest", "fake:8b", "other"):
        reply = await site.post("/api/show", model=name)
        assert (reply.status_code, name) == (404, name)
    tags = (await site.http.get("/api/tags")).json()["models"]
    assert [one["name"] for one in tags] == ["fake:latest", "org/other:latest", "third:8b"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"])
async def test_an_unknown_model_is_404_in_ollamas_words(site, path):
    reply = await site.post(path, model="llama3", messages=USER, prompt="Hi", input="Hi")
    assert reply.status_code == 404
    assert reply.json() == {"error": "model 'llama3' not found: this server has fake"}


async def test_tags_and_processes_describe_the_models(site):
    (tag,) = (await site.http.get("/api/tags")).json()["models"]
    assert (tag["name"], tag["model"]) == ("fake:latest", "fake:latest")
    assert re.fullmatch(r"[0-9a-f]{64}", tag["digest"])
    assert tag["details"] == {
        "parent_model": "", "format": "safetensors", "family": "fake", "families": ["fake"], "parameter_size": "",
        "quantization_level": "F32",
    }  # fmt: skip
    (running,) = (await site.http.get("/api/ps")).json()["models"]
    assert (running["context_length"], running["digest"]) == (512, tag["digest"])
    assert running["expires_at"] == "2300-01-01T00:00:00Z"
    site.engine.status = EngineStatus(state="sleeping")
    assert (await site.http.get("/api/ps")).json() == {"models": []}
    assert len((await site.http.get("/api/tags")).json()["models"]) == 1


async def test_show_says_what_the_model_can_do(start):
    engine = FakeClient()
    engine.media = SimpleNamespace(transcriber=None, allowed=("image",), marks={})  # type: ignore[assignment]
    site = await start(engine, tool_call_parser="hermes", reasoning_parser="qwen3")
    shown = (await site.post("/api/show", name="fake")).json()
    assert shown["capabilities"] == ["completion", "embedding", "tools", "thinking", "vision"]
    assert shown["model_info"] == {"general.architecture": "fake", "fake.context_length": 512}
    assert shown["template"] == engine.tokenizer.template
    assert (await (await start()).http.post("/api/show", json={"model": "fake"})).json()["capabilities"] == [
        "completion", "embedding",
    ]  # fmt: skip


async def test_clients_learn_a_version_they_can_compare(site):
    version = (await site.http.get("/api/version")).json()
    assert [int(part) for part in version["version"].split(".")] >= [0, 6, 4]
    assert version["lsv"]


async def test_the_root_greets_as_ollama_does(start):
    site = await start(api_keys=("k",))
    key = {"authorization": "Bearer k"}
    for accept in ("*/*", "text/html,*/*;q=0.8"):
        reply = await site.http.get("/", headers={**key, "accept": accept})
        assert (reply.text, reply.headers["content-type"]) == ("Ollama is running", "text/plain; charset=utf-8")
    head = await site.http.head("/", headers=key)
    assert (head.status_code, head.content) == (200, b"")
    index = await site.http.get("/", headers={**key, "accept": "application/json"})
    assert "POST /api/chat" in index.json()["routes"]
    assert (await site.http.head("/")).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "instead"),
    [
        ("POST", "/api/push", "publish a checkpoint"),
        ("POST", "/api/create", "--chat-template"),
        ("POST", "/api/copy", "--served-model-name"),
        ("DELETE", "/api/delete", "its operator chooses the models"),
        ("POST", "/api/blobs/sha256:ab", "lsv serve MODEL"),
        ("GET", "/api/blobs/sha256:ab", "lsv serve MODEL"),
    ],
)
async def test_what_changes_models_is_refused_by_name(site, method, path, instead):
    reply = await site.http.request(method, path, content=None if method == "GET" else b'{"model": "x"}')
    assert reply.status_code == 400
    assert set(reply.json()) == {"error"}
    assert reply.json()["error"].startswith(path.replace("sha256:ab", "{digest}") + " is not available on this server")
    assert instead in reply.json()["error"]


async def test_pulling_succeeds_for_served_models_alone(site):
    streamed = await site.post("/api/pull", model="fake")
    assert (streamed.headers["content-type"], streamed.text) == ("application/x-ndjson", '{"status":"success"}\n')
    reply = await site.post("/api/pull", model="llama3")
    assert reply.status_code == 400
    assert "model 'llama3' not found: this server has fake, and does not pull others" in reply.json()["error"]


async def test_vectors(site):
    embedded = (await site.post("/api/embed", model="fake", input=["ab", "c"])).json()
    assert embedded["embeddings"] == [[3.0, 98.0, 0.5], [2.0, 99.0, 0.5]]
    assert embedded["prompt_eval_count"] == 5
    assert embedded["total_duration"] > 0
    assert (await site.post("/api/embeddings", model="fake", prompt="ab")).json() == {"embedding": [3.0, 98.0, 0.5]}
    scaled = [request.pooling.normalize for request in site.engine.requests]
    assert scaled == [True, False]
    for empty in ("", [], None):
        assert (await site.post("/api/embed", model="fake", input=empty)).json()["embeddings"] == []
    assert (await site.post("/api/embeddings", model="fake", prompt="")).json() == {"embedding": []}


async def test_long_texts_to_embed_lose_their_end_unless_truncate_is_false(site):
    cut = (await site.post("/api/embed", model="fake", input="x" * 600)).json()
    assert cut["prompt_eval_count"] == 512
    reply = await site.post("/api/embed", model="fake", input="x" * 600, truncate=False)
    assert (reply.status_code, "set truncate" in reply.json()["error"]) == (400, True)
    assert "truncate_prompt_tokens" not in reply.text
    refused = await site.post("/api/embed", model="fake", input="x", dimensions=0)
    assert (refused.status_code, "dimensions" in refused.json()["error"]) == (400, True)


async def test_errors_before_the_handler_have_ollamas_form(start):
    site = await start(api_keys=("k",))
    reply = await site.post("/api/chat", model="fake")
    assert (reply.status_code, set(reply.json())) == (401, {"error"})
    reply = await site.http.post("/api/chat", content=b"{", headers={"x-api-key": "k"})
    assert (reply.status_code, "must be JSON" in reply.json()["error"]) == (400, True)
