"""POST /api/chat and POST /api/generate."""

from __future__ import annotations

from typing import Any

from lsv_api.http.context import Exchange, Served
from lsv_api.http.reply import stream_response
from lsv_api.ollama.keeping import check_keep_alive, check_loaded
from lsv_api.ollama.naming import find_model, naming_chat_fields, naming_generate_fields
from lsv_api.ollama.reading import read_chat, read_generate, read_raw
from lsv_api.ollama.records import (
    OllamaAnswer,
    OllamaAnswerMessage,
    OllamaAnswerRequest,
    OllamaChatAnswer,
    OllamaChatRequest,
    OllamaGenerateAnswer,
    OllamaGenerateRequest,
)
from lsv_api.ollama.writing import LINES, AnswerWriter, ChatWriter, GenerateWriter, written_at
from lsv_api.openai.asking import ask_chat, ask_text


async def chat(exchange: Exchange) -> OllamaAnswer | None:
    body = await exchange.body(OllamaChatRequest)
    served = find_model(exchange, body.model)
    check_keep_alive(body.keep_alive)
    if not body.messages:
        check_loaded(body.keep_alive)
        return OllamaChatAnswer(message=OllamaAnswerMessage(), **_loaded(body, served))
    with naming_chat_fields():
        chat = read_chat(body, served)
        asked = await ask_chat(chat, served, exchange, f"ollama-{exchange.key}", strict=False)
        writer = ChatWriter(asked, exchange, body.model or served.name, _top(body))
        return await _send(writer, body, exchange)


async def generate(exchange: Exchange) -> OllamaAnswer | None:
    body = await exchange.body(OllamaGenerateRequest)
    served = find_model(exchange, body.model)
    check_keep_alive(body.keep_alive)
    if not body.prompt and not body.images:
        check_loaded(body.keep_alive)
        return OllamaGenerateAnswer(response="", **_loaded(body, served))
    id = f"ollama-{exchange.key}"
    with naming_generate_fields():
        if body.raw:
            asked = await ask_text(read_raw(body), served, exchange, id, strict=False)
        else:
            served.admission.check_ids(body.context or (), "context")
            chat = read_generate(body, served)
            asked = await ask_chat(chat, served, exchange, id, before=body.context or (), strict=False)
        writer = GenerateWriter(asked, exchange, body.model or served.name, _top(body), raw=bool(body.raw))
        return await _send(writer, body, exchange)


async def _send(writer: AnswerWriter, body: OllamaAnswerRequest, exchange: Exchange) -> OllamaAnswer | None:
    if body.stream is False:
        return await writer.whole()
    await stream_response(exchange, writer.lines(), LINES)
    return None


def _top(body: OllamaAnswerRequest) -> int | None:
    return (body.top_logprobs or 0) if body.logprobs else None


def _loaded(body: OllamaAnswerRequest, served: Served) -> dict[str, Any]:
    """The answer to a request without a question: the model is loaded."""
    return {
        "model": body.model or served.name,
        "created_at": written_at(),
        "done": True,
        "done_reason": "load",
    }
