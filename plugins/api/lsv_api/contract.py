"""Contracts: what one kind of client speaks, as routes and their records.

A plugin declares one with the hook ``lsv_routes``. Whatever is declared here gets authentication, quotas, limits,
logging, metrics, draining and a place in ``/openapi.json`` from the application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from sanic.response import HTTPResponse

    from lsv_api.http.context import Api, Exchange
    from lsv_api.http.failures import ErrorForm

Handler = Callable[["Exchange"], Awaitable["msgspec.Struct | HTTPResponse | None"]]
"""Answers a request: with a record, which is sent as JSON, with a response, or with None once it has streamed one."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route."""

    method: Literal["GET", "POST", "DELETE"]
    """GET routes also answer HEAD."""

    path: str
    """The path, in Sanic's pattern language."""

    handler: Handler
    """Answers it."""

    summary: str
    """What it does, for the description of the API."""

    request: type[msgspec.Struct] | None = None
    """Record of the body."""

    response: type | None = None
    """Record of the answer; None: it is not JSON."""

    verbose: type | None = None
    """Record of another form of the answer, which the request asks for."""

    streams: Any = None
    """Record of the events of a streamed answer, or a union of several."""

    stream_type: str = "text/event-stream"
    """Content type of a streamed answer."""

    errors: ErrorForm | None = None
    """How errors are written; None: as OpenAI does."""

    error: type[msgspec.Struct] | None = None
    """Record of errors that ``errors`` writes, for the description of the API."""

    open: Literal["never", "monitoring", "always"] = "never"
    """Whether it is open without a key: those for monitoring are, unless the operator protects them."""

    probe: bool = False
    """Whether it reports the state of the server. It answers during draining and is logged at level debug."""

    form: bool = False
    """Whether the body is a form; otherwise it is JSON."""

    admin: bool = False
    """Whether it is for the operator alone, where keys are asked for."""

    transcribes: bool = False
    """Whether it is described only where a served model transcribes."""


class Contract(msgspec.Struct, frozen=True, kw_only=True):
    """Routes that belong together, and what they need while the server runs."""

    routes: Sequence[Route]

    run: Callable[[Api], AbstractAsyncContextManager[object]] | None = None
    """Is entered before the server listens, and left after its last request: opens stores, starts work beside them."""


class ContractOffer(msgspec.Struct, frozen=True):
    """A contract that a plugin brings."""

    name: str

    load: str
    """``"package.module:make"``, a function ``(settings: Mapping[str, Any]) -> Contract``. ``settings`` are all of the
    server's, by their names: a plugin's own are called ``<plugin>.<name>``.
    """
