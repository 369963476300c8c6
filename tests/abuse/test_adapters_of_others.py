"""Adapters belong to the operator or to an account: no other key changes, uses or sees them."""

from __future__ import annotations

import pytest

from lsv.adapters.peft import is_name
from lsv.request.adapter import owned_name, owner_of, shown_name

ACCOUNTS = '[alice]\nkeys = ["a"]\n[bob]\nkeys = ["b"]\n[root]\nkeys = ["r"]\nadmin = true\n'


class Tenants:
    """A server with two accounts and an operator."""

    def __init__(self, site) -> None:
        self.site = site

    async def post(self, key: str, path: str, **body):
        return await self.site.http.post(path, json=body, headers={"authorization": f"Bearer {key}"})

    async def load(self, key: str, name: str, folder: str, **more):
        return await self.post(key, "/v1/load_lora_adapter", lora_name=name, lora_path=folder, **more)

    async def unload(self, key: str, name: str):
        return await self.post(key, "/v1/unload_lora_adapter", lora_name=name)

    async def ask(self, key: str, model: str):
        return await self.post(key, "/v1/completions", model=model, prompt="Hi", max_tokens=2)

    async def models(self, key: str) -> dict[str, str]:
        reply = await self.site.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        return {card["id"]: card["root"] for card in reply.json()["data"]}

    async def tags(self, key: str, path: str) -> set[str]:
        """The names of models that a route of Ollama's lists."""
        reply = await self.site.http.get(path, headers={"authorization": f"Bearer {key}"})
        return {one["name"] for one in reply.json()["models"]}

    @property
    def used(self) -> str:
        """The last request to the engine."""
        return self.site.engine.requests[-1].adapter


@pytest.fixture
async def tenants(start, tmp_path) -> Tenants:
    file = tmp_path / "accounts.toml"
    file.write_text(ACCOUNTS)
    return Tenants(await start(accounts=str(file), runtime_adapters=True))


async def test_an_account_sees_and_uses_only_its_own_adapters(tenants: Tenants):
    assert (await tenants.load("a", "x", "/srv/alice")).status_code == 200
    reply = await tenants.ask("a", "x")
    assert (reply.status_code, reply.json()["model"], tenants.used) == (200, "x", owned_name("alice", "x"))
    for name in ("x", owned_name("alice", "x"), "alice/x"):
        refused = await tenants.ask("b", name)
        assert (refused.status_code, "alice" in refused.text.replace(name, "")) == (404, False)
        assert (await tenants.unload("b", name)).status_code == 404
        assert (
            await tenants.site.http.get(f"/v1/models/{name}", headers={"authorization": "Bearer b"})
        ).status_code == 404
    assert set(await tenants.models("b")) == {"fake"}
    for path in ("/api/tags", "/api/ps"):
        assert await tenants.tags("a", path) == {"fake:latest", "x:latest"}
        assert await tenants.tags("b", path) == {"fake:latest"}
    assert (await tenants.post("b", "/api/show", model="x")).status_code == 404
    assert (await tenants.ask("a", "x")).status_code == 200


async def test_accounts_may_use_the_same_name_for_adapters(tenants: Tenants):
    for key in "ab":
        assert (await tenants.load(key, "x", f"/srv/{key}")).status_code == 200
    assert (await tenants.load("b", "x", "/srv/other")).status_code == 400, "the name is taken"
    assert (await tenants.load("b", "x", "/srv/other", load_inplace=True)).status_code == 200
    paths = {adapter.name: adapter.path for adapter in tenants.site.engine.adapters}
    assert paths == {"alice~x": "/srv/a", "bob~x": "/srv/other"}
    await tenants.ask("b", "x")
    assert tenants.used == "bob~x"
    assert (await tenants.unload("b", "x")).status_code == 200
    assert (await tenants.ask("a", "x")).status_code == 200


async def test_all_accounts_use_the_operators_adapters_and_none_changes_them(tenants: Tenants):
    assert (await tenants.load("r", "shared", "/srv/shared")).status_code == 200
    assert (await tenants.ask("a", "shared")).status_code == 200
    assert (await tenants.unload("a", "shared")).status_code == 403
    for name in ("shared", "fake", "bob~shared"):
        assert (await tenants.load("a", name, "/srv/evil", load_inplace=True)).status_code == 400
    await tenants.ask("b", "shared")
    assert tenants.used == "shared"


async def test_only_the_operator_sees_folders(tenants: Tenants):
    await tenants.load("r", "shared", "/srv/shared")
    await tenants.load("a", "x", "/srv/alice")
    assert await tenants.models("a") == {"fake": "fake", "shared": "shared", "x": "x"}
    assert await tenants.models("r") == {"fake": "fake", "shared": "/srv/shared", "alice~x": "/srv/alice"}
    assert (await tenants.unload("r", "alice~x")).status_code == 200
    assert (await tenants.ask("a", "x")).status_code == 404


async def test_the_adapters_of_an_account_are_limited(tenants: Tenants, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lsv_api.admin.adapters._MOST", 2)
    assert [(await tenants.load("a", f"x{number}", "/srv")).status_code for number in range(3)] == [200, 200, 429]
    assert (await tenants.load("a", "x1", "/srv/2", load_inplace=True)).status_code == 200
    assert (await tenants.load("b", "x", "/srv")).status_code == 200


async def test_without_keys_all_clients_share_adapters(start):
    site = await start(runtime_adapters=True)
    loaded = await site.post("/v1/load_lora_adapter", lora_name="x", lora_path="/srv/x")
    assert (loaded.status_code, site.engine.adapters[0].name) == (200, "x")
    assert (await site.complete(model="x")).json()["model"] == "x"


def test_a_name_contains_the_owner_of_the_adapter():
    name = owned_name("alice.b-c_1", "org/adapter@2")
    assert (owner_of(name), shown_name(name), is_name(name)) == ("alice.b-c_1", "org/adapter@2", True)
    assert (owner_of("org/x"), shown_name("org/x"), owned_name("", "x")) == ("", "org/x", "x")
    assert not is_name("a~b~c")
    assert not is_name("~x")
