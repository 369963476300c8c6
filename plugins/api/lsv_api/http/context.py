"""What every handler works with: the server's parts, and the state of one request."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec
from sanic import Request

from lsv.engine.admission import Admission
from lsv.engine.client import Client, Service
from lsv.request.adapter import Viewer
from lsv.request.spec import RequestSpec
from lsv_api.accounts.account import ANYBODY, Account
from lsv_api.accounts.buckets import Buckets
from lsv_api.accounts.quotas import Quotas
from lsv_api.http.bodies import brings_media, decode_body, read_body
from lsv_api.http.failures import ErrorForm, Failure
from lsv_api.http.forms import decode_form
from lsv_api.options import ApiOptions
from lsv_api.parsing import PLAIN, Parsing
from lsv_api.preparing import PreparingPool
from lsv_api.prompt_log import size_of
from lsv_api.request_templates import RequestTemplates
from lsv_base.errors import EngineDied, ModelNotFound, Unavailable
from lsv_base.processes.side.turns import Owner

if TYPE_CHECKING:
    from lsv_api.metrics.registry import Metrics

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Body = TypeVar("Body", bound=msgspec.Struct)

_WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TRACE_HEADERS = ("traceparent", "tracestate")


class Traffic:
    """Counts running requests, and knows whether new ones are accepted."""

    def __init__(self) -> None:
        self.running = 0
        self.draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def idle(self) -> None:
        """Return when no request is running."""
        await self._idle.wait()


class Served(msgspec.Struct, frozen=True):
    """The model a request is for."""

    name: str
    """The name that answers carry: the model's, or its adapter's."""

    client: Client
    """Its engine."""

    admission: Admission
    """What the engine checks requests against."""

    parsing: Parsing = PLAIN
    """How its answers are read."""

    adapter: str = ""
    """The engine's name of the requested adapter; empty for the base model."""


class Shared(msgspec.Struct, frozen=True):
    """What several processes of a server have in common."""

    buckets: Buckets
    """How much accounts have used."""

    metrics: str
    """The folder in which each counts."""


class Api(msgspec.Struct, frozen=True):
    """The parts of one API server. ``started`` is in Unix seconds."""

    service: Service
    options: ApiOptions
    traffic: Traffic
    metrics: Metrics
    started: int
    templates: RequestTemplates
    """Renders what requests bring."""

    quotas: Quotas
    """Whose key is whose, and what its owner may use."""

    settings: Mapping[str, Any]
    """All settings of the server by their names, those of plugins among them."""

    paths: Sequence[str]
    """Methods and paths of what is served."""

    parsing: Mapping[str, Parsing] = {}
    """How each model's answers are read."""

    pool: PreparingPool = msgspec.field(default_factory=PreparingPool)
    """Does long work beside the event loop."""

    @property
    def takes_media(self) -> bool:
        return any(client.media is not None for client in self.service.clients.values())

    def served(self, name: str | None, viewer: Viewer) -> Served:
        """Find the model or adapter of a name or of an alias, as ``viewer`` knows it.

        Raises ``ModelNotFound``, ``EngineDied`` or ``Unavailable``.
        """
        name, client, adapter = self.route(name, viewer)
        check_ready(client)
        found = describe(client, self.parsing.get(client.config.served_names[0], PLAIN))
        return msgspec.structs.replace(found, name=name, adapter=adapter) if adapter and name else found

    def route(self, name: str | None, viewer: Viewer) -> tuple[str | None, Client, str]:
        """A served name, its client, and what that calls its adapter; for an alias, of the name that it stands for.

        Raises ``ModelNotFound``.
        """
        try:
            return name, *self.service.route(name, viewer)
        except ModelNotFound:
            meant = self._aliased(name or "")
            if meant is None:
                raise
        return meant, *self.service.route(meant, viewer)

    def _aliased(self, name: str) -> str | None:
        """The name that the first alias with a fitting pattern stands for."""
        aliases = self.options.model_aliases
        return next((meant for pattern, meant in aliases.items() if fnmatchcase(name, pattern)), None)


def describe(client: Client, parsing: Parsing = PLAIN) -> Served:
    return Served(client.config.served_names[0], client, client.admission, parsing)


def check_ready(client: Client) -> None:
    status = client.status
    if status.state == "dead":
        raise EngineDied(f"The engine is gone: {status.error or 'no reason known'}")
    if status.state == "loading":
        raise Unavailable(f"The model is still loading ({status.stage} {status.done}/{status.total}); try again soon")
    if status.state == "sleeping":
        raise Unavailable(f"The engine sleeps ({status.stage}); it answers again after POST /wake_up")
    if status.state == "draining":
        raise Unavailable("The engine is stopping and accepts no new requests")


class Exchange:
    """One request and what is known about it so far; the access log is written from it.

    ``request_id`` is the client's own when well formed, ``key`` always ours: 32 hex digits. ``size`` are the bytes of
    its body, ``preparing`` the seconds that its media took. ``failure`` is an error that ended a stream after its
    status line was sent, ``recorded`` whether the log has it. ``metered`` says whether the account's tokens count.
    """

    def __init__(self, request: Request, api: Api) -> None:
        self.request: Request = weakref.proxy(request)  # which holds this: a cycle would keep both for a while
        self.api = api
        self.key = secrets.token_hex(16)
        self.request_id = accepted_id(request.headers.get("x-request-id")) or self.key
        self.started = time.monotonic()
        self.created = int(time.time())
        self.account = ANYBODY
        self.model: str | None = None
        self.adapter = ""
        self.prompt_tokens = 0
        self.size = 0
        self.preparing = 0.0
        self.tokens = 0
        self.first_token: float | None = None
        self.failure: Failure | None = None
        self.recorded = False
        self.metered = False

    @property
    def errors(self) -> ErrorForm | None:
        """How the route writes errors; None: as OpenAI does."""
        route = self.request.route
        return None if route is None else getattr(route.ctx, "errors", None)

    async def body(self, kind: type[Body]) -> Body:
        """The body as a record, where it is JSON."""
        limits = self.api.options.limits
        if self.api.takes_media and brings_media(kind):
            data = await self._read(limits.body_bytes, "--max-body-mb")
        else:
            data = await self._read(limits.text_bytes, "--api-max-text-mb")
        return await self.prepare(len(data), decode_body, data, kind, limits)

    async def form(self, kind: type[Body]) -> Body:
        """The body as a record, where it is a form."""
        limits = self.api.options.limits
        data = await self._read(limits.body_bytes, "--max-body-mb")
        content_type = self.request.headers.get("content-type", "")
        return await self.prepare(len(data), decode_form, data, content_type, kind, limits)

    async def no_body(self) -> None:
        """Read what is sent although nothing is asked for."""
        await self._read(self.api.options.limits.text_bytes, "--api-max-text-mb")

    async def _read(self, limit: int, option: str) -> bytes:
        data = await read_body(self.request, limit, option, self.api.options.body_timeout)
        self.size = len(data)
        return data

    @property
    def viewer(self) -> Viewer:
        """Which adapters the request may use: all of them without accounts, or for the operator."""
        return Viewer(self.account.name, self.api.options.keyless or self.account.admin)

    @property
    def owner(self) -> Owner:
        """The owner of this request's work, for fair turns."""
        return Owner(self.account.name, self.account.weight, self.key)

    def prepare(
        self, size: int, work: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Awaitable[Result]:
        """Run ``work`` for this request, as ``PreparingPool.run``."""
        return self.api.pool.run(self.owner, size, work, *args, **kwargs)

    def served(self, name: str | None) -> Served:
        found = self.api.served(name, self.viewer)
        self.model, self.adapter = found.client.config.served_names[0], found.adapter
        return found

    def belongs_to(self, account: Account) -> None:
        """Whose request it is."""
        self.account = account
        self.metered = self.api.quotas.meters_tokens(account)

    async def begin(self, request: RequestSpec) -> None:
        """Count, charge and log the prompts of an admitted request, which the engine computes next."""
        self.prompt_tokens += request.prompt_tokens
        self.charge(request.prompt_tokens)
        if (prompts := self.api.options.prompt_log) is not None:
            await self.prepare(size_of(request), prompts.write, request, self.request_id)

    def charge(self, tokens: int) -> None:
        """Charge ``tokens`` that the engine computed for this request, shown in an answer or not."""
        if self.metered:
            self.api.quotas.count_tokens(self.account, tokens)

    def count_tokens(self, new: int) -> None:
        """Tokens of an answer have come."""
        if new and self.first_token is None:
            self.first_token = time.monotonic()
        self.tokens += new

    @property
    def trace(self) -> Mapping[str, str]:
        """Headers of a distributed trace, passed on to the engine."""
        return {name: self.request.headers[name] for name in _TRACE_HEADERS if name in self.request.headers}


def accepted_id(given: str | None) -> str | None:
    """A client's request id if it is harmless in headers and logs."""
    return given if given and _WELL_FORMED.fullmatch(given) else None
