"""The web application: routes, the gate before them, and one way for every error to become an answer."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct
from sanic import Request, Sanic
from sanic.response import HTTPResponse

from lsv.engine.client import Service
from lsv_api.accounts.account import read_accounts
from lsv_api.accounts.quotas import Quotas
from lsv_api.contract import Route
from lsv_api.contracts import load_contracts
from lsv_api.http.access import Gate
from lsv_api.http.access_log import CLIENT_GONE, record
from lsv_api.http.context import Api, Exchange, Shared, Traffic
from lsv_api.http.failures import Draining, describe_error, error_response
from lsv_api.http.reply import json_response
from lsv_api.metrics.registry import Metrics
from lsv_api.openapi import describe_api
from lsv_api.options import ApiOptions
from lsv_api.parsing import choose_parsing
from lsv_api.request_templates import RequestTemplates
from lsv_base.errors import ConfigError, ModelNotFound
from lsv_base.version import __version__

SILENCE = 3600
"""Seconds without a byte in either direction after which Sanic cuts a request; its own default is 60."""

SanicHandler = Callable[..., Coroutine[Any, Any, HTTPResponse | None]]


def create_app(
    service: Service,
    options: ApiOptions,
    shared: Shared | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Sanic[Any, Any]:
    """An application that serves the service's models, and does not listen yet.

    ``app.ctx.api`` holds its parts, ``app.ctx.contracts`` what it serves. Contracts get all ``settings``.

    Raises ``ConfigError`` for a file of accounts that is wrong and for parsers that no plugin offers, and
    ``PluginError`` for contracts that can't be served.
    """
    app = Sanic(f"lsv-{secrets.token_hex(8)}", env_prefix="", configure_logging=False, strict_slashes=True)
    app.config.update(_config(options))
    templates = RequestTemplates(
        seconds=options.template_timeout, memory=options.template_memory, confinement=options.confinement
    )
    metrics = Metrics(service, shared and shared.metrics)
    parsing = {
        client.config.served_names[0]: choose_parsing(client.config, client.tokenizer, options)
        for client in service.clients.values()
    }
    check_aliases(options, service)
    quotas = Quotas(read_accounts(options.api_keys, options.accounts, options.admin_keys), shared and shared.buckets)
    declared = load_contracts(settings, service.find(None).config.plugins)
    routes = [route for one in declared for route in one.contract.routes]
    paths = tuple(f"{route.method} {route.path}" for route in routes)
    api = Api(service, options, Traffic(), metrics, int(time.time()), templates, quotas, settings, paths, parsing)
    app.ctx.api = api
    app.ctx.contracts = tuple(one.contract for one in declared)
    gate = Gate(api)
    app.register_middleware(gate.admit, "request")
    app.register_middleware(gate.finish, "response")
    for kind in (Exception, asyncio.CancelledError):
        app.error_handler.add(kind, answer_error)
    for one in declared:
        for route in one.contract.routes:
            _serve(app, route, options, str(one))
    for route in _self_description(api, routes):
        _serve(app, route, options)
    return app


def check_aliases(options: ApiOptions, service: Service) -> None:
    """Raises ``ConfigError`` for an alias of a model that is not served."""
    for alias, name in options.model_aliases.items():
        try:
            service.route(name)
        except ModelNotFound as error:
            raise ConfigError(f"api-model-aliases: {alias!r}: {error.message}", param="api.model_aliases") from None


def _serve(app: Sanic[Any, Any], route: Route, options: ApiOptions, contract: str = "") -> None:
    """Add a route under all its spellings; ``contract`` says in the log where it is from."""
    for prefix in {"", options.root_path}:
        for path in _spellings(prefix + route.path):
            _add_route(app, route, path, options, contract)


def _config(options: ApiOptions) -> dict[str, Any]:
    return {
        "MOTD": False,
        "AUTO_EXTEND": False,
        "ACCESS_LOG": False,
        "REQUEST_MAX_SIZE": options.limits.body_bytes,
        "REQUEST_TIMEOUT": 60,
        "RESPONSE_TIMEOUT": SILENCE,
        # Off: it rewrites methods of Sanic's classes, which breaks a second application in the same process.
        "TOUCHUP": False,
    }


def _spellings(path: str) -> tuple[str, ...]:
    """A path, and the same with a trailing slash, which some clients append. A name at the end includes the slash."""
    return (path,) if path.endswith(("/", ">")) else (path, f"{path}/")


def _add_route(app: Sanic[Any, Any], route: Route, path: str, options: ApiOptions, contract: str) -> None:
    app.add_route(
        _endpoint(route, contract),
        path,
        methods=["GET", "HEAD"] if route.method == "GET" else [route.method],
        name=f"{route.method}{path}".translate(_NAME_SAFE),
        # The handler reads the body itself: a request without the key is refused before that.
        stream=route.method != "GET",
        error_format="json",
        ctx_open=route.open in options.open_routes,
        ctx_admin=route.admin,
        ctx_errors=route.errors,
    )


_NAME_SAFE = str.maketrans(dict.fromkeys("/<>:.- ", "_"))


def _endpoint(route: Route, contract: str) -> SanicHandler:
    """A Sanic handler around ours: counts, turns errors into answers, and logs, however the request ends."""

    async def handle(request: Request, **_: str) -> HTTPResponse | None:
        exchange: Exchange = request.ctx.exchange
        status = CLIENT_GONE
        try:
            response = _as_response(await _run(route, exchange))
            status = _status(response, exchange)
        except Exception as error:
            failure = describe_error(error, exchange.request_id, f"{route.method} {route.path} of {contract}")
            response = None if request.responded else error_response(failure, route.errors)
            status = failure.status
        finally:
            record(exchange, route.path, status, probe=route.probe)
        return response

    return handle


async def _run(route: Route, exchange: Exchange) -> Struct | HTTPResponse | None:
    if route.probe:
        return await route.handler(exchange)
    traffic = exchange.api.traffic
    if traffic.draining:
        raise Draining("The server is stopping and takes no new requests")
    with traffic.counted():
        return await route.handler(exchange)


def _as_response(answer: object) -> HTTPResponse | None:
    """What a handler returned, as a response. Raises ``TypeError`` for what no handler may return."""
    if answer is None or isinstance(answer, HTTPResponse):
        return answer
    if isinstance(answer, Struct):
        return json_response(answer)
    raise TypeError(f"its handler must return a record, a response or None, got {type(answer).__name__}")


def _status(response: HTTPResponse | None, exchange: Exchange) -> int:
    """The status to log: of a stream that an error ended, the error's."""
    if exchange.failure is not None:
        return exchange.failure.status
    return 200 if response is None else response.status


async def answer_error(request: Request, error: BaseException) -> HTTPResponse:
    """Errors outside of our handlers: unknown routes, wrong methods, malformed requests."""
    exchange: Exchange | None = getattr(request.ctx, "exchange", None)
    failure = describe_error(error, exchange.request_id if exchange else "-")
    response = error_response(failure, None if exchange is None else exchange.errors)
    if exchange is not None:
        record(exchange, "other", response.status)
    return response


def _self_description(api: Api, routes: Sequence[Route]) -> tuple[Route, ...]:
    """``/openapi.json``, which describes all routes, itself among them."""
    options = api.options

    @cache
    def document() -> bytes:
        transcribes = any(client.media and client.media.transcriber for client in api.service.clients.values())
        described = [route for route in (*routes, *own) if transcribes or not route.transcribes]
        return msgspec.json.encode(
            describe_api(described, version=__version__, root_path=options.root_path, open_routes=options.open_routes)
        )

    async def show_openapi(exchange: Exchange) -> HTTPResponse:
        return HTTPResponse(document(), content_type="application/json")

    own = (
        Route(
            method="GET", path="/openapi.json", handler=show_openapi, summary="This description", response=dict,
            probe=True,
        ),
    )  # fmt: skip
    return own
