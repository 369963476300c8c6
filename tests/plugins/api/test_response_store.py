"""Stored responses: fetched, gone on from and deleted by their owner alone, bounded, and there after a restart."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseInputMessageItem, ResponseItem
from openai.types.responses.response_item_list import ResponseItemList

from lsv_api.responding.database import Bounds, Database, Row
from lsv_testing.fakes.client import FakeClient
from suite.openai_models import check_response, read_events

PATH = "/v1/responses"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "responses.db"


@pytest.fixture
def serve(start, file: Path):
    async def serve(engine: FakeClient | None = None, settings: dict[str, Any] | None = None, **options: Any):
        return await start(engine, settings={"api.responses_path": str(file), **(settings or {})}, **options)

    return serve


async def respond(site, **body: Any) -> Any:
    headers = {"x-api-key": body.pop("key")} if "key" in body else {}
    reply = await site.http.post(PATH, json={"input": "Hi"} | body, headers=headers)
    assert reply.status_code == 200, reply.text
    return check_response(reply.content)


def prompt_of(site) -> str:
    return bytes(token for token in site.engine.requests[-1].prompt.ids if token < 256).decode()


async def test_a_response_is_fetched_as_it_was_answered(serve) -> None:
    site = await serve()
    for body in ({}, {"stream": True}):
        reply = await site.post(PATH, input="Hi", **body)
        first = read_events(reply.text)[-1].response if body else check_response(reply.content)
        assert first.store is True
        again = await site.http.get(f"{PATH}/{first.id}")
        assert check_response(again.content) == first


async def test_a_conversation_goes_on_from_a_response(serve) -> None:
    site = await serve()
    first = await respond(site, input="Hi", instructions="Be brief.")
    second = await respond(site, input="And?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert prompt_of(site) == "<user>Hi\n<assistant>Hello, world.\n<user>And?\n<assistant>", "instructions are not kept"
    await respond(site, input="So?", previous_response_id=second.id)
    assert prompt_of(site).count("<assistant>Hello, world.") == 2
    await site.http.delete(f"{PATH}/{first.id}")
    await respond(site, input="So?", previous_response_id=second.id)
    assert prompt_of(site).count("<assistant>Hello, world.") == 2, "what goes on from it has all of it"


async def test_places_in_the_new_input_are_named(serve) -> None:
    site = await serve()
    first = await respond(site)
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    body = {"input": [{"role": "user", "content": [image]}], "previous_response_id": first.id}
    error = (await site.post(PATH, **body)).json()["error"]
    assert error["param"] == "input[0].content[0]"


async def test_items_are_referred_to(serve) -> None:
    site = await serve(FakeClient(answer="<think>Hm.</think>Hello."), reasoning_parser="deepseek_r1")
    first = await respond(site)
    references = [{"type": "item_reference", "id": item.id} for item in first.output]
    question = {"role": "user", "content": "Hi"}
    await respond(site, input=[question, *references, {"role": "user", "content": "And?"}])
    by_reference = site.engine.requests[-1].prompt.ids
    await respond(site, input="And?", previous_response_id=first.id)
    assert site.engine.requests[-1].prompt.ids == by_reference
    unknown = await site.post(PATH, input=[question, {"id": "msg_gone"}])
    assert unknown.json()["error"]["param"] == "input[1].id"


async def test_input_items(serve) -> None:
    site = await serve()
    items = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
    ]
    id = (await respond(site, input=items)).id
    reply = await site.http.get(f"{PATH}/{id}/input_items", params={"order": "asc"})
    found = ResponseItemList.model_validate_json(reply.content, strict=True)
    assert [item.type for item in found.data] == [
        "message", "message", "function_call", "function_call_output", "reasoning", "message"
    ]  # fmt: skip
    assert isinstance(found.data[0], ResponseInputMessageItem)
    assert (found.first_id, found.last_id, found.has_more) == (found.data[0].id, found.data[-1].id, False)
    listed: list[ResponseItem] = [item async for item in site.openai.responses.input_items.list(id, limit=4)]
    assert [item.id for item in listed] == [item.id for item in reversed(found.data)]
    for wrong in ({"limit": "0"}, {"limit": "101"}, {"order": "up"}, {"after": "gone"}):
        refused = await site.http.get(f"{PATH}/{id}/input_items", params=wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(wrong)))


async def test_a_response_is_deleted(serve, file: Path) -> None:
    site = await serve()
    found = await respond(site, input="a secret of mine")
    await site.openai.responses.delete(found.id)
    for path in (found.id, f"{found.id}/input_items"):
        gone = await site.http.get(f"{PATH}/{path}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "response_not_found")
    assert (await site.http.delete(f"{PATH}/{found.id}")).status_code == 404
    reply = await site.post(PATH, input="And?", previous_response_id=found.id)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "previous_response_not_found")
    await site.stop()
    assert b"a secret of mine" not in file.read_bytes()


async def test_responses_are_readable_by_their_owner_alone(serve) -> None:
    site = await serve(api_keys=("a", "b"), admin_keys=("operator",))
    found = await respond(site, key="a", store=True)
    item = found.output[0].id
    for key, status in (("a", 200), ("b", 404), ("operator", 404)):
        headers = {"x-api-key": key}
        for path in (found.id, f"{found.id}/input_items"):
            assert (await site.http.get(f"{PATH}/{path}", headers=headers)).status_code == status
        ways = ({"previous_response_id": found.id}, {"input": [{"role": "user", "content": "Hi"}, {"id": item}]})
        for body in ways:
            reply = await site.http.post(PATH, json={"input": "Hi"} | body, headers=headers)
            assert reply.status_code == (200 if key == "a" else 400)
    assert (await site.http.delete(f"{PATH}/{found.id}", headers={"x-api-key": "b"})).status_code == 404
    assert (await site.http.get(f"{PATH}/{found.id}", headers={"x-api-key": "a"})).status_code == 200


async def test_what_is_not_to_be_stored_is_not(serve, file: Path) -> None:
    site = await serve()
    found = await respond(site, store=False)
    assert found.store is False
    assert (await site.http.get(f"{PATH}/{found.id}")).status_code == 404
    assert not file.exists(), "no file is made before it is needed"


async def test_a_server_may_store_nothing(start) -> None:
    site = await start(settings={"api.responses_path": "off"})
    found = await respond(site)
    assert found.store is False
    assert (await site.http.get(f"{PATH}/{found.id}")).status_code == 404
    refused = {"store": {"store": True}, "previous_response_id": {"previous_response_id": "resp_1"}}
    for param, body in refused.items():
        error = (await site.post(PATH, input="Hi", **body)).json()["error"]
        assert error["param"] == param
        assert "--api-responses-path off" in error["message"]


async def test_responses_are_there_after_a_restart_and_for_other_processes(serve, file: Path) -> None:
    first, second = await serve(), await serve()
    found = await respond(first)
    for site in (second, await serve()):
        assert check_response((await site.http.get(f"{PATH}/{found.id}")).content).output_text == "Hello, world."
    await first.stop()
    await respond(second, previous_response_id=found.id)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_many_processes_write_at_once(serve) -> None:
    sites = [await serve() for _ in range(4)]
    found = await asyncio.gather(*(respond(site, input=f"{turn}") for site in sites for turn in range(10)))
    for response in found:
        assert (await sites[0].http.get(f"{PATH}/{response.id}")).status_code == 200


def test_a_new_file_may_be_opened_many_times_at_once(tmp_path) -> None:
    """SQLite itself does not wait for another one that makes it keep a log."""
    for turn in range(40):
        with ThreadPoolExecutor(4) as threads:
            opened = [threads.submit(open_and_close, tmp_path / f"{turn}.db") for _ in range(4)]
        for one in opened:
            one.result()


def open_and_close(path: Path) -> None:
    Database(path, Bounds()).close()


async def test_an_account_has_room_for_so_many_responses(serve) -> None:
    site = await serve(settings={"api.responses_count": 3}, api_keys=("a", "b"))
    others = await respond(site, key="b")
    found = [await respond(site, key="a") for _ in range(5)]
    status = [
        (await site.http.get(f"{PATH}/{response.id}", headers={"x-api-key": "a"})).status_code for response in found
    ]
    assert status == [404, 404, 200, 200, 200]
    assert (await site.http.get(f"{PATH}/{others.id}", headers={"x-api-key": "b"})).status_code == 200


async def test_an_account_has_room_for_so_many_bytes(serve, caplog) -> None:
    site = await serve(settings={"api.responses_mb": 0.01})
    found = [await respond(site, input=str(turn) + "x" * 300) for turn in range(10)]
    status = [(await site.http.get(f"{PATH}/{response.id}")).status_code for response in found]
    assert status == sorted(status, reverse=True), "the oldest go first"
    assert 2 <= status.count(200) <= 8
    long = await respond(site, input="y" * 400, metadata={str(turn): "z" * 512 for turn in range(16)}, user="u" * 9000)
    assert long.store is False
    assert "over --api-responses-mb" in caplog.text


async def test_responses_expire(serve) -> None:
    site = await serve(settings={"api.responses_days": 0.5 / 86_400})
    found = await respond(site)
    assert (await site.http.get(f"{PATH}/{found.id}")).status_code == 200
    await asyncio.sleep(0.6)
    assert (await site.http.get(f"{PATH}/{found.id}")).status_code == 404
    assert (await site.post(PATH, input="And?", previous_response_id=found.id)).status_code == 400


def test_what_has_expired_is_deleted_when_the_file_is_opened(file: Path) -> None:
    first = Database(file, Bounds(seconds=100))
    first.save(Row(id="resp_1", owner="", body=b"{}", input=b"[]"), ["msg_1"])
    first.close()
    later = Database(file, Bounds(seconds=0))
    later.purge()
    later.close()
    with sqlite3.connect(file) as connection:
        counts = [connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone() for table in ("responses", "items")]
    connection.close()
    assert counts == [(0,), (0,)]


async def test_a_file_that_cannot_be_used_loses_no_answer(serve, file: Path, caplog) -> None:
    file.parent.mkdir()
    file.write_bytes(b"no database" * 1000)
    site = await serve()
    found = await respond(site)
    assert (found.output_text, found.store) == ("Hello, world.", False)
    assert "file is not a database" in caplog.text
    reply = await site.http.get(f"{PATH}/{found.id}")
    assert reply.status_code == 503
    assert str(file) not in reply.text
    assert (await site.post(PATH, input="Hi", background=True)).status_code == 503


async def test_a_folder_that_cannot_be_made_loses_no_answer(serve, file: Path, caplog) -> None:
    file.parent.write_text("no folder")
    site = await serve()
    assert (await respond(site)).store is False
    assert str(file) in caplog.text
    assert (await site.post(PATH, input="Hi", background=True)).status_code == 503


async def test_a_file_of_another_version_is_left_alone(serve, file: Path, caplog) -> None:
    Database(file, Bounds()).close()
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert (await respond(await serve())).store is False
    assert "another version of lsv (format 99)" in caplog.text


def test_a_file_of_the_first_version_is_brought_up_to_date(file: Path) -> None:
    bounds = Bounds(count=2)
    database = Database(file, bounds)
    for number in range(2):
        database.save(make_row(number))
    database.close()
    with sqlite3.connect(file) as connection:
        for trigger in ("response_added", "response_changed", "response_deleted"):
            connection.execute(f"DROP TRIGGER {trigger}")
        connection.execute("DROP TABLE totals")
        connection.execute("ALTER TABLE responses DROP COLUMN items")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    database = Database(file, bounds)
    database.save(make_row(2))
    assert [database.fetch("me", f"resp_{number}") is not None for number in range(3)] == [False, True, True]
    database.close()


@pytest.mark.parametrize("stored", [64, 512])
def test_storing_does_not_grow_with_what_is_stored(file: Path, stored: int) -> None:
    """At the bound too, where each new response takes the place of the oldest."""
    database = Database(file, Bounds(count=stored))
    for number in range(stored):
        database.save(make_row(number))
    steps = count_steps(database, lambda: database.save(make_row(stored)))
    assert database.fetch("me", "resp_0") is None
    assert steps < 600
    database.close()


def make_row(number: int) -> Row:
    return Row(id=f"resp_{number}", owner="me", body=b"{}", input=b"[]")


def count_steps(database: Database, work: Callable[[], object]) -> int:
    """How many instructions of its virtual machine SQLite runs."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    database._connection.set_progress_handler(count, 1)
    work()
    database._connection.set_progress_handler(None, 0)
    return steps
