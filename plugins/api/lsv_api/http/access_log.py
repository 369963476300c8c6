"""The log line and the count of each request; it has no prompts, answers or keys."""

from __future__ import annotations

import logging
import time
from http import HTTPStatus

from lsv_api.http.context import Exchange

log = logging.getLogger("lsv.api")

CLIENT_GONE = 499
"""The status logged for a request whose client left before the answer (a convention of proxies)."""


def record(exchange: Exchange, route: str, status: int, *, probe: bool = False) -> None:
    """Log and count one finished request once, although an error passes several places that could do so.

    ``route`` is a declared pattern, so it needs no escaping. A ``probe`` is asked every few seconds by whatever watches
    the server, and would drown the requests of users: it is logged at level debug, unless it failed.
    """
    if exchange.recorded:
        return
    exchange.recorded = True
    exchange.api.metrics.count_http(route, status)
    if not exchange.api.options.log_requests:
        return
    parts = [f"{_method(exchange)} {route} {status}", f"req={exchange.request_id}"]
    if exchange.model is not None:
        parts += [
            f"key={exchange.key}",
            f"model={exchange.model!r}",
            f"prompt_tokens={exchange.prompt_tokens}",
        ]
        parts += [f"tokens={exchange.tokens}"]
    if exchange.first_token is not None:
        parts.append(f"ttft={exchange.first_token - exchange.started:.3f}s")
    parts.append(f"duration={time.monotonic() - exchange.started:.3f}s")
    watched = probe and status in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE)
    log.log(logging.DEBUG if watched else logging.INFO, " ".join(parts))


def _method(exchange: Exchange) -> str:
    method = exchange.request.method
    return method if method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "OTHER"
