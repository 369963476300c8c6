"""Beginning a response, and writing it while the model answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from lsv.request.params import SamplingParams
from lsv_api.http.context import Exchange, Served
from lsv_api.openai.asking import Asked
from lsv_api.openai.growing import GrowingAnswer
from lsv_api.openai.logprobs import LogprobWriter
from lsv_api.records.responses import ErrorResponse
from lsv_api.responding.building import ItemBuilder
from lsv_api.responding.fitting import ask_response
from lsv_api.responding.items import write_messages
from lsv_api.responding.naming import naming_own_fields
from lsv_api.responding.reading import ENCRYPTED, shows_logprobs
from lsv_api.responding.records import ResponseObject
from lsv_api.responding.requests import ResponsesFormat, ResponsesInputItem, ResponsesRequest
from lsv_api.responding.tools import custom_names, find_homes, kept_tools
from lsv_api.responding.writing import ResponseWriter


class Begun(NamedTuple):
    """A response that the engine is to answer."""

    asked: Asked
    writer: ResponseWriter


async def begin_response(
    body: ResponsesRequest, items: Sequence[ResponsesInputItem], served: Served, exchange: Exchange, first: int = 0
) -> Begun:
    """Admit a response to ``items``, of which the ``first`` ones come from stored responses."""
    id = f"resp_{exchange.key}"
    chat = await exchange.prepare(exchange.size, write_messages, items, body.instructions, first)
    asked = await ask_response(body, chat, served, exchange, id)
    assert asked.request.sampling is not None
    response = describe_request(body, asked.request.sampling, id, exchange.created, served.name)
    builder = ItemBuilder(
        custom=custom_names(body.tools or ()),
        homes=find_homes(body.tools or ()),
        seal=ENCRYPTED in (body.include or ()),
        most_calls=body.max_tool_calls,
    )
    as_ids = exchange.api.options.return_tokens_as_token_ids
    logprobs = LogprobWriter(served.client.tokenizer, as_ids=as_ids) if shows_logprobs(body) else None
    streams = bool(body.stream or body.background)
    return Begun(asked, ResponseWriter(response, builder, logprobs, streams=streams))


async def write_whole(writer: ResponseWriter, answer: GrowingAnswer) -> None:
    """Run a response to its end."""
    writer.begin()
    with naming_own_fields():
        async with aclosing(answer.deltas()) as growing:
            async for deltas in growing:
                writer.add(deltas)
    writer.close(answer)


async def stream_events(
    writer: ResponseWriter, answer: GrowingAnswer, keep: Callable[[], Awaitable[None]]
) -> AsyncGenerator[bytes, None]:
    """All events of a response. The first ones wait for the model, so that what it refuses has its own status. The
    response is kept before the last one, so that a client that has it can go on from there.
    """
    with naming_own_fields():
        async with aclosing(answer.deltas()) as growing:
            async for deltas in growing:
                begun = [] if writer.number else writer.begin()
                yield b"".join(begun + writer.add(deltas))
    begun = [] if writer.number else writer.begin()
    ended = writer.close(answer)
    await keep()
    yield b"".join([*begun, *ended, *writer.conclude()])


def failing(writer: ResponseWriter) -> Any:
    """Writes an error that comes in the middle of a stream."""
    return lambda body: b"".join(writer.fail(msgspec.json.decode(body, type=ErrorResponse).error))


def describe_request(
    body: ResponsesRequest, sampling: SamplingParams, id: str, created: int, model: str
) -> ResponseObject:
    """A response that has only what the request asked for."""
    reasoning = body.reasoning
    return ResponseObject(
        id=id,
        created_at=created,
        status="in_progress",
        model=model,
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": reasoning and reasoning.effort, "summary": reasoning and reasoning.summary},
        safety_identifier=body.safety_identifier,
        temperature=sampling.temperature,
        text={"format": _format(body.text.format if body.text else None), "verbosity": "medium"},
        tool_choice=body.tool_choice or "auto",
        tools=[_tool(tool) for tool in kept_tools(body.tools or ())],
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        truncation=body.truncation or "disabled",
        user=body.user,
        metadata=body.metadata or {},
    )


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A function with all fields that clients expect."""
    if tool.get("type") != "function":
        return dict(tool)
    return {"description": None, "parameters": None, "strict": None, **tool}


def _format(given: ResponsesFormat | None) -> dict[str, Any]:
    if given is None or given.type != "json_schema":
        return {"type": "text" if given is None else given.type}
    return {
        "name": "response",
        **{key: value for key, value in msgspec.to_builtins(given).items() if value is not None},
    }
