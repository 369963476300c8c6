"""The routes of the Responses API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from sanic.response import HTTPResponse

from lsv_api.http.context import Api, Exchange
from lsv_api.http.reply import json_response, stream_response
from lsv_api.http.sse import StreamForm
from lsv_api.openai.growing import GrowingAnswer
from lsv_api.responding.answering import Begun, begin_response, failing, stream_events, write_whole
from lsv_api.responding.database import Database
from lsv_api.responding.following import POLL_SECONDS, Following, read_resumption
from lsv_api.responding.items import normalise_items
from lsv_api.responding.jobs import BackgroundJobs
from lsv_api.responding.pages import read_page
from lsv_api.responding.reading import check_body
from lsv_api.responding.records import DeletedResponse, ResponseItems, ResponseObject
from lsv_api.responding.requests import ResponsesInputItem, ResponsesRequest
from lsv_api.responding.store import ResponseNotFound, ResponseStore
from lsv_base.errors import BadRequest

_CANCEL_SECONDS = 10.0
"""How long cancelling waits for the process that works on the response."""


class ResponseService:
    """Answers requests, and keeps what it has answered in a store."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._jobs = BackgroundJobs(store)

    @asynccontextmanager
    async def run(self, api: Api) -> AsyncIterator[None]:
        """While the server runs."""
        try:
            yield
        finally:
            await self._jobs.close()
            await self._store.close()

    async def create(self, exchange: Exchange) -> HTTPResponse | None:
        body = await exchange.body(ResponsesRequest)
        check_body(body)
        if body.store:
            self._store.check_on("store", "store")
        if body.background:
            self._store.check_on("background", "background")
        served = exchange.served(body.model)
        items, earlier = await self._gather(body, exchange)
        begun = await begin_response(body, items, served, exchange, earlier)
        begun.writer.response.store = self._store.is_on and body.store is not False
        if body.background:
            return await self._work(body, begun, items, exchange)
        answer = GrowingAnswer(begun.asked, exchange, watch=begun.writer.watch)

        async def keep() -> None:
            await self._keep(begun, items, exchange)

        if body.stream:
            form = StreamForm(error=failing(begun.writer))
            await stream_response(exchange, stream_events(begun.writer, answer, keep), form)
            return None
        await write_whole(begun.writer, answer)
        await keep()
        return json_response(begun.writer.response)

    async def show(self, exchange: Exchange) -> HTTPResponse | None:
        """``stream`` shows the events of a response of the background, those ``starting_after`` a number."""
        row = await self._store.fetch(exchange.account.name, _id_of(exchange))
        after = read_resumption(exchange.request.args)
        if after is None:
            return HTTPResponse(row.body, content_type="application/json")
        if not msgspec.json.decode(row.body, type=ResponseObject).background:
            raise BadRequest("stream: only responses that were made with background can be streamed", param="stream")
        await self._stream(row.id, after, exchange)
        return None

    async def cancel(self, exchange: Exchange) -> HTTPResponse:
        """Answers once the response has ended, or after a few seconds with what it is then."""
        await exchange.no_body()
        owner, id = exchange.account.name, _id_of(exchange)
        row = await self._store.fetch(owner, id)
        if not msgspec.json.decode(row.body, type=ResponseObject).background:
            raise BadRequest(
                "Only a response that was made with background can be cancelled; leave the others' streams"
            )
        if row.worker:
            await self._store.run(Database.cancel, owner, id)
        waited = time.monotonic()
        while row.worker and time.monotonic() - waited < _CANCEL_SECONDS:
            await asyncio.sleep(POLL_SECONDS)
            row = await self._store.fetch(owner, id)
        return HTTPResponse(row.body, content_type="application/json")

    async def delete(self, exchange: Exchange) -> DeletedResponse:
        id = _id_of(exchange)
        await self._store.fetch(exchange.account.name, id)
        if not await self._store.run(Database.delete, exchange.account.name, id):
            raise ResponseNotFound(f"There is no response {id[:64]!r}: it was deleted meanwhile")
        return DeletedResponse(id=id)

    async def list_input(self, exchange: Exchange) -> ResponseItems:
        page = read_page(exchange.request.args)
        row = await self._store.fetch(exchange.account.name, _id_of(exchange))
        return page.cut(msgspec.json.decode(row.input, type=list[ResponsesInputItem]))

    async def _work(
        self, body: ResponsesRequest, begun: Begun, items: Sequence[ResponsesInputItem], exchange: Exchange
    ) -> HTTPResponse | None:
        """Have a response made in the background: answer at once, or with its events."""
        await self._jobs.start(begun, items, exchange)
        response = begun.writer.response
        if not body.stream:
            return json_response(response)
        await self._stream(response.id, -1, exchange)
        return None

    async def _stream(self, id: str, after: int, exchange: Exchange) -> None:
        """Send the events of a response of the background, and further ones as they are stored."""
        following = Following(self._store, exchange.account.name, id, after)
        await stream_response(exchange, following.events(), StreamForm(error=following.fail))

    async def _gather(self, body: ResponsesRequest, exchange: Exchange) -> tuple[list[ResponsesInputItem], int]:
        """All items of the conversation, and how many of them come from an earlier response."""
        owner, earlier = exchange.account.name, list[ResponsesInputItem]()
        if body.previous_response_id:
            earlier = await self._store.continue_from(owner, body.previous_response_id)
        given = await exchange.prepare(exchange.size, normalise_items, body.input)
        return [*earlier, *await self._store.resolve(owner, given)], len(earlier)

    async def _keep(self, begun: Begun, items: Sequence[ResponsesInputItem], exchange: Exchange) -> None:
        """Store a response that has ended; it says so if it could not be."""
        response = begun.writer.response
        if response.store:
            response.store = await self._store.keep(exchange.account.name, response, items)


def _id_of(exchange: Exchange) -> str:
    return str(exchange.request.match_info["id"])
