"""Routes that put the engines to sleep and wake them up, and who may use them."""

from __future__ import annotations

import pytest

from lsv.engine.orders.sleep import Sleep, WakeUp
from lsv.engine.parts.profiles import StartProfile, StopProfile
from lsv_api.accounts.account import read_accounts

ADMIN = {"authorization": "Bearer boss"}
USER = {"authorization": "Bearer right"}


async def test_sleep_and_wake_up(start):
    site = await start()
    assert (await site.http.get("/is_sleeping")).json() == {"is_sleeping": False}
    assert (await site.http.post("/sleep")).status_code == 200
    assert (await site.http.get("/is_sleeping")).json() == {"is_sleeping": True}
    health = await site.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "sleeping")
    assert (await site.http.get("/live")).status_code == 200
    refused = await site.complete()
    assert refused.status_code == 503
    assert "POST /wake_up" in refused.json()["error"]["message"]
    assert (await site.http.post("/wake_up")).status_code == 200
    assert (await site.complete()).status_code == 200
    await site.http.post("/sleep?level=2&mode=wait")
    await site.http.post("/wake_up?tags=weights&tags=kv_cache")
    await site.http.post("/wake_up?tags=weights,kv_cache")
    assert site.engine.orders == [
        Sleep(), WakeUp(), Sleep(2, "wait"), WakeUp(("weights", "kv_cache")), WakeUp(("weights", "kv_cache")),
    ]  # fmt: skip


async def test_a_level_is_a_number(start):
    site = await start()
    for level in ("two", "-1", "1.5", "1" * 5000):
        reply = await site.http.post(f"/sleep?level={level}")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "level")
    assert site.engine.orders == []


@pytest.mark.parametrize("path", ["/sleep", "/wake_up"])
async def test_with_keys_they_are_for_the_operator(start, path):
    site = await start(api_keys=("right",), admin_keys=("boss",))
    assert (await site.http.post(path)).status_code == 401
    denied = await site.http.post(path, headers=USER)
    assert denied.status_code == 403
    assert "--admin-api-key" in denied.json()["error"]["message"]
    assert site.engine.orders == []
    assert (await site.http.post(path, headers=ADMIN)).status_code == 200
    assert (await site.http.post("/v1/completions", json={"prompt": "Hi"}, headers=USER)).status_code in (200, 503)
    assert (await site.http.get("/is_sleeping", headers=USER)).status_code == 200


async def test_without_an_admin_key_no_user_is_the_operator(start):
    site = await start(api_keys=("right",))
    assert (await site.http.post("/sleep", headers=USER)).status_code == 403


async def test_an_admin_key_closes_them_alone_on_an_open_server(start):
    site = await start(admin_keys=("boss",))
    assert (await site.http.post("/sleep")).status_code == 401
    assert (await site.complete()).status_code == 200
    assert (await site.http.post("/sleep", headers=ADMIN)).status_code == 200


def test_accounts_may_be_the_operators(tmp_path):
    file = tmp_path / "accounts.toml"
    file.write_text('[alice]\nkeys = ["a"]\nadmin = true\n[bob]\nkeys = ["b"]\n')
    accounts = read_accounts((), str(file), ("boss",))
    assert [accounts.find(key).admin for key in (b"a", b"b", b"boss")] == [True, False, True]


@pytest.mark.row("F-107", "F-866")
async def test_profiles(start):
    site = await start(api_keys=("right",), admin_keys=("boss",))
    for path in ("/start_profile", "/stop_profile"):
        assert (await site.http.post(path, headers=USER)).status_code == 403
        assert (await site.http.post(path, headers=ADMIN)).status_code == 200
    assert site.engine.orders == [StartProfile(), StopProfile()]
