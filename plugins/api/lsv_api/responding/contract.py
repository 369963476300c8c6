"""OpenAI's Responses API, which Open Responses describes for other servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_api.contract import Contract, Route
from lsv_api.responding import answering
from lsv_api.responding.events import StreamEvent
from lsv_api.responding.records import ResponseObject
from lsv_api.responding.requests import ResponsesRequest

ROUTES = (
    Route(
        method="POST",
        path="/v1/responses",
        handler=answering.create_response,
        summary="Answer a conversation of items",
        request=ResponsesRequest,
        response=ResponseObject,
        streams=StreamEvent,
    ),
)


def make(settings: Mapping[str, Any]) -> Contract:
    return Contract(routes=ROUTES)
