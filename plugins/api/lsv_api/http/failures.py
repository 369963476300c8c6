"""Errors as the OpenAI API shapes them: one body, one status, for whatever was raised."""

from __future__ import annotations

import logging
import math
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from sanic.exceptions import MethodNotAllowed, NotFound, SanicException
from sanic.response import HTTPResponse

from lsv_api.accounts.quotas import RateLimited
from lsv_api.records.responses import ErrorBody, ErrorResponse
from lsv_base.errors import BadRequest, LsvError, Unavailable

log = logging.getLogger("lsv.api")

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_RETRY_AFTER = {429: "1", 503: "5"}


class Unsupported(BadRequest):
    """A field that exists elsewhere and that this server can't honour."""

    code = "unsupported_parameter"


class BodyTimeout(BadRequest):
    """The client took too long to send the body."""

    code = "request_timeout"
    status = 408


class NotAllowed(LsvError):
    """The operator has not switched it on."""

    code = "not_allowed"
    status = 403


class Draining(Unavailable):
    """The server is stopping and takes no new requests."""

    code = "draining"


ErrorForm = Callable[[int, ErrorBody], tuple[int, Any]]
"""Writes an error as a contract does: from a status and OpenAI's body, the contract's status and its record."""


class Failure(msgspec.Struct, frozen=True):
    """An error as clients see it."""

    status: int
    """As OpenAI's API has it."""

    body: ErrorBody
    headers: Mapping[str, str] = {}

    def write(self, form: ErrorForm | None = None) -> tuple[int, bytes]:
        """Status and JSON body in the form of a contract."""
        status, record = (self.status, ErrorResponse(self.body)) if form is None else form(self.status, self.body)
        return status, msgspec.json.encode(record)


def describe_error(error: BaseException, request_id: str, where: str = "") -> Failure:
    """What clients see of an error; one that is our fault is logged, with ``where``, and shown without details."""
    status, body = _describe(error, request_id, where)
    headers = {"retry-after": _RETRY_AFTER[status]} if status in _RETRY_AFTER else {}
    if isinstance(error, RateLimited):
        headers["retry-after"] = str(max(1, math.ceil(error.seconds)))
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        headers.update(error.headers)
    return Failure(status, body, headers)


def error_response(failure: Failure, form: ErrorForm | None = None) -> HTTPResponse:
    status, body = failure.write(form)
    return HTTPResponse(body, status=status, headers=dict(failure.headers), content_type="application/json")


def _describe(error: BaseException, request_id: str, where: str) -> tuple[int, ErrorBody]:
    if isinstance(error, LsvError):
        return error.status, _body(error.status, error.message, error.code, error.param)
    if isinstance(error, NotFound):
        return 404, _body(404, "There is no such route; GET /openapi.json lists them", "not_found")
    if isinstance(error, MethodNotAllowed):
        return 405, _body(405, "This route does not take that method", "method_not_allowed")
    if isinstance(error, CancelledError):
        return 503, _body(503, "The server stopped before the answer was complete", "cancelled")
    if isinstance(error, SanicException) and error.status_code in _TYPES:
        return error.status_code, _body(error.status_code, str(error), "invalid_request")
    log.error("internal error%s req=%s", where and f" in {where}", request_id, exc_info=error)
    return 500, _body(500, f"Internal server error, see the server's log for request {request_id}", "internal_error")


def _body(status: int, message: str, code: str, param: str | None = None) -> ErrorBody:
    return ErrorBody(message=message, type=_TYPES.get(status, "server_error"), param=param, code=code)
