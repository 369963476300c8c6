"""OpenAI's Responses API, which Open Responses describes for other servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_api.contract import Contract, Route
from lsv_api.responding.events import StreamEvent
from lsv_api.responding.records import DeletedResponse, ResponseItems, ResponseObject
from lsv_api.responding.requests import ResponsesRequest
from lsv_api.responding.service import ResponseService
from lsv_api.responding.store import ResponseStore


def make(settings: Mapping[str, Any]) -> Contract:
    service = ResponseService(ResponseStore.from_settings(settings))
    return Contract(
        run=service.run,
        routes=(
            Route(
                method="POST",
                path="/v1/responses",
                handler=service.create,
                summary="Answer a conversation of items",
                request=ResponsesRequest,
                response=ResponseObject,
                streams=StreamEvent,
            ),
            Route(
                method="GET",
                path="/v1/responses/<id>",
                handler=service.show,
                summary="Show a stored response",
                response=ResponseObject,
                streams=StreamEvent,
            ),
            Route(
                method="DELETE",
                path="/v1/responses/<id>",
                handler=service.delete,
                summary="Delete a stored response",
                response=DeletedResponse,
            ),
            Route(
                method="POST",
                path="/v1/responses/<id>/cancel",
                handler=service.cancel,
                summary="Cancel a response of the background",
                response=ResponseObject,
            ),
            Route(
                method="GET",
                path="/v1/responses/<id>/input_items",
                handler=service.list_input,
                summary="List the items that a stored response was made from",
                response=ResponseItems,
            ),
        ),
    )
