"""Errors as Anthropic's API has them: its types, its status codes, and its event in a stream."""

from __future__ import annotations

from lsv_api.http.sse import StreamForm
from lsv_api.messages.records import MessagesError, MessagesErrorBody
from lsv_api.records.responses import ErrorBody
from lsv_base.errors import ContextTooLong, EngineDied, Overloaded

OVERLOADED = 529
"""Anthropic's status for a server that can't take a request now and may later."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED: "overloaded_error",
}
_TOO_LONG = "prompt is too long: "
"""Anthropic's clients shorten a conversation when an error begins so."""


def write_error(status: int, body: ErrorBody) -> tuple[int, MessagesError]:
    """An error as a route of Messages answers it. Raises nothing."""
    if body.code == EngineDied.code:
        status = 500
    elif body.code == Overloaded.code or status == 503:
        status = OVERLOADED
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    message = _TOO_LONG + body.message if body.code == ContextTooLong.code else body.message
    return status, MessagesError(error=MessagesErrorBody(type=kind, message=message))


STREAM = StreamForm(
    ping=b'event: ping\ndata: {"type":"ping"}\n\n',
    end=b"",
    error=lambda body: b"event: error\ndata: " + body + b"\n\n",
)
"""As Anthropic's API writes streams: an event's name stands before its data, and ``message_stop`` ends them."""
