"""Accounts over HTTP: whose request it is, what is left of it, and whose prefixes it may find."""

from __future__ import annotations

from pathlib import Path

import pytest

FILE = """
[alice]
keys = ["a"]
weight = 3
requests_per_minute = 2

[bob]
keys = ["b"]
tokens_per_minute = 40
"""


@pytest.fixture
def accounts(tmp_path: Path) -> str:
    file = tmp_path / "accounts.toml"
    file.write_text(FILE)
    return str(file)


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def complete(site, name: str, **body):
    return await site.http.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 3, **body}, headers=key(name))


async def test_requests_carry_their_owner_to_the_engine(start, accounts):
    site = await start(accounts=accounts, api_keys=("plain",))
    for name in ("a", "b", "plain"):
        assert (await complete(site, name)).status_code == 200
    assert (await complete(site, "c")).status_code == 401
    owners = [(request.tenant[:4], request.weight) for request in site.engine.requests]
    assert owners == [("alic", 3.0), ("bob", 1.0), ("key-", 1.0)]


async def test_a_server_with_accounts_alone_is_closed(start, accounts):
    site = await start(accounts=accounts)
    assert (await site.http.get("/v1/models")).status_code == 401
    assert (await site.http.get("/v1/models", headers=key("a"))).status_code == 200


async def test_used_up_requests_come_back_later(start, accounts):
    site = await start(accounts=accounts)
    first, second, third = [await complete(site, "a") for _ in range(3)]
    assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    assert second.headers["x-ratelimit-remaining-requests"] == "0"
    assert third.status_code == 429
    assert third.json()["error"]["code"] == "rate_limit_exceeded"
    assert 25 <= int(third.headers["retry-after"]) <= 30
    assert (await complete(site, "b")).status_code == 200, "another account's bounds are its own"


async def test_tokens_of_prompts_and_answers_are_used(start, accounts):
    site = await start(accounts=accounts)
    site.engine.answer = "x" * 30
    reply = await complete(site, "b", prompt="y" * 19, max_tokens=20)
    assert reply.status_code == 200
    assert (await complete(site, "b")).status_code == 200, "one token is left, and a minute's share of time"
    refused = await complete(site, "b")
    assert (refused.status_code, refused.headers["x-ratelimit-remaining-tokens"]) == (429, "0")
    models = await site.http.get("/v1/models", headers=key("b"))
    assert models.status_code == 200, "only requests that cost tokens are refused"


async def test_prefixes_are_an_accounts_own_unless_shared(start, accounts):
    apart = await start(accounts=accounts)
    together = await start(accounts=accounts, shared_prefix_cache=True)
    for site in (apart, together):
        for name in ("a", "b"):
            await complete(site, name)
    assert len({request.salt for request in apart.engine.requests}) == 2
    assert {request.salt for request in together.engine.requests} == {b""}
    await complete(together, "a", cache_salt="own")
    await complete(apart, "b", cache_salt="own")
    assert together.engine.requests[-1].salt != apart.engine.requests[-1].salt
    assert b"" not in (together.engine.requests[-1].salt, apart.engine.requests[-1].salt)


async def test_a_salt_can_not_be_made_to_look_like_another_accounts(start, tmp_path):
    file = tmp_path / "accounts.toml"
    file.write_text('[ab]\nkeys = ["1"]\n[a]\nkeys = ["2"]\n')
    site = await start(accounts=str(file))
    await complete(site, "1", cache_salt="c")
    await complete(site, "2", cache_salt="bc")
    first, second = site.engine.requests
    assert first.salt != second.salt
