"""Responses in the background: they go on without their client, are followed and cancelled from any process."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lsv_api.responding.database import Bounds, Database, Row
from lsv_api.responding.workers import WorkerMarks
from lsv_base.errors import Overloaded, RequestFailed
from lsv_testing.fakes.client import FakeClient
from suite.openai_models import check_response, read_events
from suite.waiting import until

PATH = "/v1/responses"
KINDS = ["created", "queued", "in_progress", "output_item.added", "content_part.added"]
ENDS = ["output_text.done", "content_part.done", "output_item.done", "completed"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "responses.db"


@pytest.fixture
def serve(start, file: Path):
    async def serve(engine: FakeClient | None = None, **options: Any):
        return await start(engine, settings={"api.responses_path": str(file)}, **options)

    return serve


async def begin(site, **body: Any) -> Any:
    return check_response((await site.post(PATH, **({"input": "Hi", "background": True} | body))).content)


async def show(site, id: str) -> Any:
    return check_response((await site.http.get(f"{PATH}/{id}")).content)


async def follow(site, id: str, **query: Any) -> str:
    return (await site.http.get(f"{PATH}/{id}", params={"stream": "true", **query})).text


async def ended(site, id: str) -> Any:
    while (found := await show(site, id)).status in ("queued", "in_progress"):
        await asyncio.sleep(0.02)
    return found


def kinds(text: str) -> list[str]:
    return [event.type.removeprefix("response.") for event in read_events(text)]


async def test_it_is_queued_then_works_then_is_complete(serve) -> None:
    engine = FakeClient()
    engine.gate.clear()
    engine.pace = 0.03
    site = await serve(engine)
    found = await begin(site)
    assert (found.status, found.background, found.output) == ("queued", True, [])
    assert (await show(site, found.id)).status == "queued"
    engine.gate.set()
    seen = set()
    while (now := await show(site, found.id)).status != "completed":
        seen.add(now.status)
        await asyncio.sleep(0.02)
    assert seen <= {"queued", "in_progress"}
    assert "in_progress" in seen
    assert now.output_text == "Hello, world."
    assert now.usage.output_tokens == 14


async def test_its_events_are_followed_and_resumed(serve) -> None:
    site, other = await serve(), await serve()
    text = (await site.post(PATH, input="Hi", background=True, stream=True)).text
    events = read_events(text)
    shown = [event.type.removeprefix("response.") for event in events]
    assert (shown[:5], shown[-4:]) == (KINDS, ENDS)
    assert set(shown[5:-4]) == {"output_text.delta"}
    id = events[0].response.id
    for server in (site, other):
        assert await follow(server, id) == text
        rest = await follow(server, id, starting_after=9)
        assert text.endswith(rest)
        assert '"sequence_number":10,' in rest.partition("\n\n")[0]
    assert kinds(await follow(site, id, starting_after=len(events))) == []
    for query in ({"starting_after": "x"}, {"stream": "perhaps"}, {"stream": "false", "starting_after": "1"}):
        refused = await site.http.get(f"{PATH}/{id}", params={"stream": "true", **query})
        assert refused.status_code == 400
    sync = check_response((await site.post(PATH, input="Hi")).content)
    refused = await site.http.get(f"{PATH}/{sync.id}", params={"stream": "true"})
    assert refused.json()["error"]["param"] == "stream"


async def test_it_goes_on_when_its_client_leaves(serve) -> None:
    site = await serve()
    site.engine.pace = 0.02
    async with await site.openai.responses.create(model="fake", input="Hi", background=True, stream=True) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
    last = event.sequence_number
    (request,) = site.engine.requests
    found = await ended(site, request.request_id)
    assert found.output_text == "Hello, world."
    assert site.engine.aborted == []
    stream = await site.openai.responses.retrieve(found.id, stream=True, starting_after=last)
    rest = [event async for event in stream]
    assert [event.sequence_number for event in rest] == list(range(last + 1, last + 1 + len(rest)))
    assert rest[-1].type == "response.completed"


async def test_it_is_cancelled_from_any_process(serve) -> None:
    for remote in (False, True):
        site = await serve()
        site.engine.pace = 0.05
        other = await serve() if remote else site
        found = await begin(site)
        following = asyncio.create_task(follow(other, found.id))
        await until(lambda site=site: site.engine.generated > 2)
        cancelled = check_response((await other.http.post(f"{PATH}/{found.id}/cancel")).content)
        assert cancelled.status == "cancelled"
        assert cancelled.output[0].status == "incomplete"
        assert site.engine.aborted == [found.id]
        again = check_response((await site.http.post(f"{PATH}/{found.id}/cancel")).content)
        assert again == cancelled
        assert kinds(await following)[-1] == "error"
    reply = await site.post(PATH, input="And?", previous_response_id=found.id)
    assert "is cancelled" in reply.json()["error"]["message"]


async def test_what_is_not_in_the_background_is_not_cancelled(serve) -> None:
    site = await serve()
    found = check_response((await site.post(PATH, input="Hi")).content)
    assert (await site.http.post(f"{PATH}/{found.id}/cancel")).status_code == 400
    done = await ended(site, (await begin(site)).id)
    assert check_response((await site.http.post(f"{PATH}/{done.id}/cancel")).content) == done


async def test_deleting_it_stops_it(serve) -> None:
    site = await serve()
    site.engine.pace = 0.05
    found = await begin(site)
    following = asyncio.create_task(follow(site, found.id))
    await until(lambda: site.engine.generated > 2)
    assert (await site.http.delete(f"{PATH}/{found.id}")).status_code == 200
    await until(lambda: site.engine.aborted == [found.id])
    assert read_events(await following)[-1].code == "response_not_found"
    assert (await site.http.get(f"{PATH}/{found.id}")).status_code == 404


async def test_it_is_its_owners_alone(serve) -> None:
    site = await serve(api_keys=("a", "b"))
    reply = await site.http.post(PATH, json={"input": "Hi", "background": True}, headers={"x-api-key": "a"})
    id, other = reply.json()["id"], {"x-api-key": "b"}
    assert (await site.http.get(f"{PATH}/{id}", params={"stream": "true"}, headers=other)).status_code == 404
    assert (await site.http.post(f"{PATH}/{id}/cancel", headers=other)).status_code == 404


async def test_errors_of_the_engine_fail_it(serve) -> None:
    site = await serve()
    cases = [(Overloaded("the queue is full"), "rate_limit_exceeded"), (RequestFailed("no number"), "server_error")]
    for place, (failure, code) in enumerate(cases):
        site.engine.failure, site.engine.fail_after = failure, place * 5
        found = await ended(site, (await begin(site)).id)
        assert (found.status, found.error.code, found.error.message) == ("failed", code, str(failure))
        assert kinds(await follow(site, found.id))[-1] == "failed"


async def test_wrong_requests_are_refused_at_once(serve) -> None:
    site = await serve()
    assert (await site.post(PATH, input="Hi", background=True, temperature=-1)).status_code == 400
    assert (await site.post(PATH, input="x" * 600, background=True)).status_code == 400


async def test_a_server_that_stops_drains_it(serve) -> None:
    site, other = await serve(), await serve()
    site.engine.pace = 0.03
    found = await begin(site)
    await until(lambda: site.engine.generated > 1)
    site.server.stop()
    await site.task
    assert (await show(other, found.id)).output_text == "Hello, world."


async def test_a_server_that_must_stop_fails_it(serve) -> None:
    site, other = await serve(), await serve()
    site.engine.gate.clear()
    found = await begin(site)
    following = asyncio.create_task(follow(other, found.id))
    await site.stop()
    failed = await show(other, found.id)
    assert (failed.status, failed.error.message) == ("failed", "The server stopped before the response was complete")
    assert kinds(await following) == ["created", "queued", "failed"]


async def test_that_of_a_killed_process_has_failed(serve, file: Path) -> None:
    site = await serve()
    site.engine.gate.clear()
    found = await begin(site)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE responses SET worker = 'gone'")
    connection.close()
    assert kinds(await follow(site, found.id)) == ["created", "queued", "failed"]
    assert (await show(site, found.id)).error.message == "The server was killed while it worked on this"


def hold(folder: Path, sending: Any) -> None:
    marks = WorkerMarks(folder)
    sending.send(marks.take())
    sending.recv()


def test_a_process_works_until_it_is_killed(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=hold, args=(tmp_path, theirs))
    process.start()
    name = ours.recv()
    marks = WorkerMarks(tmp_path)
    assert marks.is_working(name)
    assert marks.is_working(marks.take())
    process.kill()
    process.join()
    ours.close()
    theirs.close()
    assert not marks.is_working(name)
    other = WorkerMarks(tmp_path)
    other.take()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([marks.take(), other.take()])
    other.close()
    marks.close()
    assert list(tmp_path.iterdir()) == []


async def test_responses_under_way_are_not_what_room_is_made_of(serve, start, file: Path) -> None:
    settings = {"api.responses_path": str(file), "api.responses_count": 2}
    site = await start(settings=settings)
    site.engine.gate.clear()
    found = await begin(site)
    site.engine.gate.set()
    waiting = FakeClient()
    waiting.gate.clear()
    slow = await start(waiting, settings=settings)
    held = await begin(slow)
    later = [check_response((await site.post(PATH, input="Hi")).content) for _ in range(3)]
    assert (await show(slow, held.id)).status == "queued"
    assert (await site.http.get(f"{PATH}/{later[0].id}")).status_code == 404
    assert (await site.http.get(f"{PATH}/{later[-1].id}")).status_code == 200
    assert found.id != held.id


async def test_the_official_client_polls(serve) -> None:
    site = await serve()
    found = await site.openai.responses.create(model="fake", input="Hi", background=True)
    while found.status in ("queued", "in_progress"):
        await asyncio.sleep(0.02)
        found = await site.openai.responses.retrieve(found.id)
    assert found.output_text == "Hello, world."
    assert (await site.openai.responses.cancel(found.id)).status == "completed"


def test_events_of_a_response_are_counted_in_its_size(tmp_path: Path) -> None:
    database = Database(tmp_path / "responses.db", Bounds(bytes=1000))
    for number in range(3):
        row = Row(id=f"resp_{number}", owner="", body=b"x" * 100, input=b"")
        database.save(row, (), [(0, b"y" * 300)])
    assert database.fetch("", "resp_0") is None
    assert database.follow("", "resp_0", -1) is None
    assert database.follow("", "resp_1", -1) == ("", [(0, b"y" * 300)])
    database.close()
