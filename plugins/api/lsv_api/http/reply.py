"""What answers of both generation routes have in common: their envelope, and how they are sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, TypedDict

import msgspec
from sanic.response import HTTPResponse

from lsv_api.http.context import Exchange, Served
from lsv_api.http.sse import EVENTS, StreamForm, send_events
from lsv_api.options import ApiOptions
from lsv_api.records.requests import GenerationRequest, StreamOptions
from lsv_base.errors import BadRequest


class EnvelopeFields(TypedDict):
    id: str
    created: int
    model: str
    system_fingerprint: str


class Envelope(msgspec.Struct, frozen=True):
    """The fields that every object and every chunk of one answer repeats."""

    id: str
    """The answer's id."""

    created: int
    """When the request came, in Unix seconds."""

    model: str
    """The name that answers carry."""

    fingerprint: str
    """That of the engine's configuration."""

    @classmethod
    def of(cls, kind: str, served: Served, exchange: Exchange) -> Envelope:
        fingerprint = served.client.config.fingerprint()
        return cls(f"{kind}-{exchange.key}", exchange.created, served.name, fingerprint)

    def fields(self) -> EnvelopeFields:
        return {
            "id": self.id,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


def check_stream(body: GenerationRequest, options: ApiOptions) -> None:
    """Refuse combinations that can't be streamed, and stream options without a stream; streams that are always to tell
    the usage are made to.
    """
    if not body.stream:
        if body.stream_options is not None:
            raise BadRequest("stream_options needs stream to be true", param="stream_options")
        return
    if options.force_include_usage:
        body.stream_options = body.stream_options or StreamOptions()
        body.stream_options.include_usage = True
    if body.prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs can't be streamed; set stream to false", param="prompt_logprobs")
    if body.use_beam_search:
        raise BadRequest(
            "use_beam_search can't be streamed: which answers are best is known at the end; set stream to false",
            param="use_beam_search",
        )
    if body.best_of is not None and body.best_of > (body.n or 1):
        raise BadRequest("best_of can't be streamed unless it equals n; set stream to false", param="best_of")


def json_response(record: Any, status: int = 200) -> HTTPResponse:
    return HTTPResponse(msgspec.json.encode(record), status=status, content_type="application/json")


async def stream_response(exchange: Exchange, events: AsyncGenerator[bytes, None], form: StreamForm = EVENTS) -> None:
    """Send events as the answer to a request, and note an error that came too late for a status."""
    exchange.failure = await send_events(
        exchange.request,
        events,
        form,
        request_id=exchange.request_id,
        heartbeat=exchange.api.options.heartbeat,
        errors=exchange.errors,
    )
