"""POST /generate: a text and its continuations, as vLLM's simple server answers.

The format is that of ``vllm/entrypoints/api_server.py`` up to vLLM 0.6: an object of a stream has the whole texts so
far, and a NUL byte ends it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from lsv.engine.answers import Answers
from lsv_api.http.context import Exchange
from lsv_api.http.failures import Unsupported
from lsv_api.http.reply import check_stream, stream_response
from lsv_api.http.sse import StreamForm
from lsv_api.inference.records import TextRequest, TextResponse
from lsv_api.openai.asking import Asked, ask_text
from lsv_api.openai.completions import DEFAULT_MAX_TOKENS
from lsv_api.openai.generation import collect, run
from lsv_api.records.requests import CompletionRequest


def _delimit(body: bytes) -> bytes:
    return body + b"\0"


OBJECTS = StreamForm(content_type="application/octet-stream", ping=None, end=b"", error=_delimit)
"""Objects of JSON, each with a NUL byte at its end. Nothing can be sent that clients pass over."""


_NO_PLACE = (
    "echo",
    "logprobs",
    "prompt_logprobs",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "stream_options",
    "kv_transfer_params",
)
"""Fields of completions that change what an answer shows beside its texts."""


async def continue_text(exchange: Exchange) -> TextResponse | None:
    body = await exchange.body(TextRequest)
    _check_shown(body)
    served = exchange.served(body.model)
    completion = CompletionRequest(**msgspec.structs.asdict(body))
    check_stream(completion, exchange.api.options)
    completion.stream_options = None  # this format has no place for the usage
    asked = await ask_text(
        completion, served, exchange, f"generate-{exchange.key}", default_max_tokens=DEFAULT_MAX_TOKENS
    )
    if not body.stream:
        (answers,), _ = await collect(asked.request, asked.served, exchange, asked.origin)
        return _whole(body.prompt, answers)
    await stream_response(exchange, _objects(body.prompt, asked, exchange), OBJECTS)
    return None


def _check_shown(body: TextRequest) -> None:
    """Raises ``Unsupported`` for a field that the answer has no place for."""
    for name in _NO_PLACE:
        if getattr(body, name) is not None and getattr(body, name) is not False:
            raise Unsupported(
                f"{name} is not available here: /generate answers with the prompt and its continuation alone; "
                "use /v1/completions",
                param=name,
            )


async def _objects(prompt: str, asked: Asked, exchange: Exchange) -> AsyncGenerator[bytes, None]:
    """Yield an object for each step of the engine, which extends all answers that have begun and not ended."""
    assert asked.request.sampling is not None
    answers = Answers(asked.request.sampling)
    growing = set(range(asked.request.sampling.candidates))
    extended: set[int] = set()  # since the last object
    async with run(asked.request, asked.served, exchange, asked.origin) as chunks:
        async for chunk in chunks:
            if chunk.index in extended:  # the next step; answers that are missing have not begun
                yield await _object(prompt, answers, exchange)
                extended.clear()
            exchange.count_tokens(len(chunk.ids))
            answers.add(chunk)
            extended.add(chunk.index)
            if extended >= growing:
                yield await _object(prompt, answers, exchange)
                extended.clear()
            if chunk.finish is not None:
                growing.discard(chunk.index)
    if extended:
        yield await _object(prompt, answers, exchange)


async def _object(prompt: str, answers: Answers, exchange: Exchange) -> bytes:
    """The texts so far, encoded beside the event loop where they are long."""
    shown = _whole(prompt, answers)
    return await exchange.prepare(sum(map(len, shown.text)), _encode, shown)


def _encode(shown: TextResponse) -> bytes:
    return _delimit(msgspec.json.encode(shown))


def _whole(prompt: str, answers: Answers) -> TextResponse:
    return TextResponse(text=[prompt + answer.text for answer in answers.best()])
