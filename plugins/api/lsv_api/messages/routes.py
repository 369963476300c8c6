"""POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from functools import partial

from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import stream_response
from lsv_api.messages.errors import STREAM
from lsv_api.messages.reading import Read
from lsv_api.messages.records import MessagesAnswer, MessagesCount, MessagesCountRequest, MessagesRequest
from lsv_api.messages.signatures import Signer
from lsv_api.messages.writing import MessageWriter
from lsv_api.openai.asking import ask_chat
from lsv_api.openai.conversation import encode_chat
from lsv_api.openai.growing import GrowingAnswer
from lsv_api.openai.tools import read_tools
from lsv_api.records.requests import ChatRequest


class Messages:
    """The handlers of both routes, with what signs thoughts."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    async def create(self, exchange: Exchange) -> MessagesAnswer | None:
        body = await exchange.body(MessagesRequest)
        served, id = exchange.served(body.model), f"msg_{exchange.key}"
        read = await exchange.prepare(exchange.size, Read, body, served, self._signer)
        asked = await read.ask(partial(ask_chat, served=served, exchange=exchange, id=id, strict=False))
        # Claude Code drops the thoughts of an answer that has another name than it has asked for
        name = body.model or served.name
        writer = MessageWriter(body, GrowingAnswer(asked, exchange), self._signer, id, name)
        if body.stream:
            await stream_response(exchange, writer.events(), STREAM)
            return None
        return await writer.whole()

    async def count_tokens(self, exchange: Exchange) -> MessagesCount:
        body = await exchange.body(MessagesCountRequest)
        served = exchange.served(body.model)
        read = await exchange.prepare(exchange.size, Read, body, served, self._signer)
        read.chat.truncate_prompt_tokens = -1  # a conversation that does not fit is counted, too
        return MessagesCount(await read.ask(partial(_count_prompt, served=served, exchange=exchange)))


async def _count_prompt(body: ChatRequest, served: Served, exchange: Exchange) -> int:
    """The tokens of the prompt that ``ask_chat`` makes of a conversation."""
    tools = await exchange.prepare(exchange.size, read_tools, body, served, exchange.api.options)
    return len((await encode_chat(body, served, exchange, tools.shown)).ids)
