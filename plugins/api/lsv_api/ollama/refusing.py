"""Routes of Ollama that fetch, make and remove models, which only this server's operator does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NoReturn

from lsv_api.contract import Handler, Route
from lsv_api.http.context import Exchange
from lsv_api.http.failures import Unsupported
from lsv_api.http.reply import stream_response
from lsv_api.ollama.naming import find_name, write_error
from lsv_api.ollama.records import OllamaProgress, OllamaPullRequest
from lsv_api.ollama.writing import LINES, write_line
from lsv_base.errors import ModelNotFound

_START = "its operator chooses the models: lsv serve MODEL fetches and serves one"
_REFUSED = (
    ("POST", "/api/push", "publish a checkpoint with the tools of its registry"),
    ("POST", "/api/create", "start lsv serve with --chat-template, --quantization or --override-generation-config"),
    ("POST", "/api/copy", "give a model more names with --served-model-name"),
    ("DELETE", "/api/delete", "its operator chooses the models: stop it, or start it without that model"),
    ("GET", "/api/blobs/<digest>", _START),
    ("POST", "/api/blobs/<digest>", _START),
)
"""Each route, and what to do instead."""


async def pull(exchange: Exchange) -> OllamaProgress | None:
    """A served model is there. Raises ``Unsupported`` for others."""
    body = await exchange.body(OllamaPullRequest)
    try:
        find_name(body.model or body.name, exchange.api.service, exchange.viewer)
    except ModelNotFound as error:
        raise Unsupported(f"{error.message}, and does not pull others; {_START}", param="model") from None
    if body.stream is False:
        return OllamaProgress()
    await stream_response(exchange, _succeed(), LINES)
    return None


async def _succeed() -> AsyncGenerator[bytes, None]:
    yield write_line(OllamaProgress())


def refusals() -> tuple[Route, ...]:
    return tuple(
        Route(
            method=method,  # type: ignore[arg-type]
            path=path,
            handler=_refuse(path, instead),
            summary="Refused: models are the operator's",
            errors=write_error,
        )
        for method, path, instead in _REFUSED
    )


def _refuse(path: str, instead: str) -> Handler:
    shown = path.replace("<digest>", "{digest}")

    async def refuse(exchange: Exchange) -> NoReturn:
        await exchange.no_body()
        raise Unsupported(f"{shown} is not available on this server; {instead}")

    return refuse
