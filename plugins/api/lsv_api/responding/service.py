"""The routes of the Responses API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from sanic.response import HTTPResponse

from lsv_api.http.context import Api, Exchange
from lsv_api.http.failures import Unsupported
from lsv_api.http.reply import json_response, stream_response
from lsv_api.http.sse import StreamForm
from lsv_api.openai.growing import GrowingAnswer
from lsv_api.responding.answering import Begun, begin_response, failing, stream_events, write_whole
from lsv_api.responding.database import Database
from lsv_api.responding.items import normalise_items
from lsv_api.responding.pages import read_page
from lsv_api.responding.reading import check_body
from lsv_api.responding.records import DeletedResponse, ResponseItems
from lsv_api.responding.requests import ResponsesInputItem, ResponsesRequest
from lsv_api.responding.store import ResponseNotFound, ResponseStore


class ResponseService:
    """Answers requests, and keeps what it has answered in a store."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    @asynccontextmanager
    async def run(self, api: Api) -> AsyncIterator[None]:
        """While the server runs."""
        try:
            yield
        finally:
            await self._store.close()

    async def create(self, exchange: Exchange) -> HTTPResponse | None:
        body = await exchange.body(ResponsesRequest)
        check_body(body)
        if body.store:
            self._store.check_on("store", "store")
        if body.background:
            raise Unsupported("background is not available on this server; leave it out", param="background")
        served = exchange.served(body.model)
        items, earlier = await self._gather(body, exchange)
        begun = await begin_response(body, items, served, exchange, earlier)
        answer = GrowingAnswer(begun.asked, exchange)
        begun.writer.response.store = self._store.is_on and body.store is not False

        async def keep() -> None:
            await self._keep(begun, items, exchange)

        if body.stream:
            form = StreamForm(error=failing(begun.writer))
            await stream_response(exchange, stream_events(begun.writer, answer, keep), form)
            return None
        await write_whole(begun.writer, answer)
        await keep()
        return json_response(begun.writer.response)

    async def show(self, exchange: Exchange) -> HTTPResponse:
        row = await self._store.fetch(exchange.account.name, _id_of(exchange))
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
