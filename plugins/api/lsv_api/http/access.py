"""Who may do what: names and pages, then the API key, before anything else; CORS; headers on every answer."""

from __future__ import annotations

from sanic import Request
from sanic.response import BaseHTTPResponse, HTTPResponse

from lsv_api.http.access_log import record
from lsv_api.http.context import Api, Exchange
from lsv_api.http.failures import NotAllowed, describe_error, error_response
from lsv_api.http.load_report import ASKED, HEADER, report_load
from lsv_base.errors import LsvError, Unauthorized
from lsv_base.processes.visitors import Visitors

_EXPOSED = "x-request-id, request-id, retry-after, " + ", ".join(
    f"x-ratelimit-{part}-{what}" for part in ("limit", "remaining", "reset") for what in ("requests", "tokens")
)
_METHODS = "GET, POST, DELETE, OPTIONS"
_PREFLIGHT_SECONDS = "600"


class Gate:
    """Stands before routing's result is used, so that no spelling of a path gets around it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._options = api.options
        self._visitors = Visitors(
            api.options.host,
            keyless=api.options.keyless,
            hosts=api.options.allowed_hosts,
            origins=api.options.allowed_origins,
        )

    async def admit(self, request: Request) -> HTTPResponse | None:
        """Begin an exchange; answer at once what needs no handler: preflights, and requests that are not let in."""
        request.ctx.exchange = exchange = Exchange(request, self._api)
        try:
            self._visitors.check(request.method, request.headers)
            if self._is_preflight(request):
                return self._preflight(request)
            self._let_in(request, exchange)
        except LsvError as error:
            denied = error_response(describe_error(error, exchange.request_id), exchange.errors)
            record(exchange, "denied", denied.status)
            return denied
        return None

    async def finish(self, request: Request, response: BaseHTTPResponse) -> HTTPResponse | None:
        """Headers every answer carries. What a route of another plugin returns may be no answer at all."""
        if not isinstance(response, BaseHTTPResponse):
            return self._refuse(request, response)
        exchange = getattr(request.ctx, "exchange", None)
        if exchange is not None:
            response.headers["x-request-id"] = exchange.request_id
            response.headers["request-id"] = exchange.request_id  # where Anthropic's clients look
            response.headers.update(self._api.quotas.headers(exchange.account))
            self._report_load(request, response)
        response.headers["x-content-type-options"] = "nosniff"
        response.headers.setdefault("cache-control", "no-store")
        if self._options.allowed_origins:
            self._allow_origin(request, response)
        return None

    def _refuse(self, request: Request, response: object) -> HTTPResponse:
        error = TypeError(f"its handler must return a response, got {type(response).__name__}")
        path = "unknown route" if request.route is None else f"/{request.route.path}"
        return error_response(describe_error(error, request.ctx.exchange.request_id, f"{request.method} {path}"))

    def _report_load(self, request: Request, response: BaseHTTPResponse) -> None:
        """Tell balancers that ask for it how loaded the engines are, with answers of the routes that use them."""
        if request.method == "POST" and ASKED in request.headers and response.status == 200:
            report = report_load(request.headers[ASKED], self._api.service.clients.values())
            if report is not None:
                response.headers[HEADER] = report

    def _is_open(self, request: Request) -> bool:
        """Routes without a key are marked at their declaration; anything routing did not find is not open."""
        return request.route is not None and getattr(request.route.ctx, "open", False)

    def _let_in(self, request: Request, exchange: Exchange) -> None:
        """Find out whose key the request carries, if it has one.

        Raises ``Unauthorized`` where it needs a key, ``NotAllowed`` where that has to be the operator's, or
        ``RateLimited`` if it is used up.
        """
        admin = request.route is not None and getattr(request.route.ctx, "admin", False)
        if self._options.keyless and not (admin and self._options.admin_keys):
            return
        account = self._api.quotas.accounts.find(_key(request))
        if account is None:
            if self._is_open(request) and not admin:
                return
            raise Unauthorized("Missing or wrong API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        exchange.belongs_to(account)
        if admin and not account.admin:
            raise NotAllowed(
                "Only the operator may do this: use a key of --admin-api-key, or of an account with admin = true"
            )
        if request.method == "POST":
            self._api.quotas.start(account)

    def _is_preflight(self, request: Request) -> bool:
        return (
            request.method == "OPTIONS"
            and "access-control-request-method" in request.headers
            and self._origin(request) is not None
        )

    def _preflight(self, request: Request) -> HTTPResponse:
        asked = request.headers.get("access-control-request-headers", "")
        methods, headers = self._options.allowed_methods, self._options.allowed_headers
        return HTTPResponse(
            status=204,
            headers={
                "access-control-allow-methods": _METHODS if "*" in methods else ", ".join(methods),
                "access-control-allow-headers": asked if "*" in headers else ", ".join(headers),
                "access-control-max-age": _PREFLIGHT_SECONDS,
            },
        )

    def _allow_origin(self, request: Request, response: BaseHTTPResponse) -> None:
        response.headers["vary"] = "Origin"
        origin = self._origin(request)
        if origin is None:
            return
        response.headers["access-control-allow-origin"] = "*" if "*" in self._options.allowed_origins else origin
        response.headers["access-control-expose-headers"] = _EXPOSED
        if self._options.allow_credentials:
            response.headers["access-control-allow-credentials"] = "true"

    def _origin(self, request: Request) -> str | None:
        """The page's origin, if it is an allowed one."""
        origin: str | None = request.headers.get("origin")
        allowed = self._options.allowed_origins
        return origin if origin and (origin in allowed or "*" in allowed) else None


def _key(request: Request) -> bytes:
    """The key of a request, empty if it has none. Anthropic's clients send it in a header of its own."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    given = bearer if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    return given.strip().encode("utf-8", "surrogateescape")
