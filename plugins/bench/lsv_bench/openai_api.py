"""A thin client of any OpenAI-compatible server, for the terminal commands and the load generator."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import httpx2

from lsv_base.errors import BadRequest, LsvError, Unavailable

_TIMEOUT = httpx2.Timeout(3600.0, connect=10.0)
_CUT = "the connection to the server broke off before the answer was complete"


def headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def quieten() -> None:
    """Keep the HTTP client from logging a line a request: among answers it disturbs, while measuring it takes time."""
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, up to ``[DONE]``.

    Raises ``BadRequest`` on an error event, ``Unavailable`` for a stream that ends without that mark or in a line.
    """
    ended = False
    for line in lines:
        ended = ended or line.partition("data:")[2].strip() == "[DONE]"
        found = _event(line)
        if found is not None:
            yield found
    if not ended:
        raise Unavailable(_CUT)


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("data:"):
        return None
    data = line[5:].strip()
    if data == "[DONE]":
        return None
    try:
        event: dict[str, Any] = json.loads(data)
    except ValueError:  # the last line of a stream that is cut in the middle of it
        raise Unavailable(_CUT) from None
    if error := event.get("error"):
        raise BadRequest(str(error.get("message", error) if isinstance(error, dict) else error))
    return event


def refusal(status: int, body: bytes) -> LsvError:
    """The error a server answered with, or a proxy before it."""
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = _foreign(status, body)
    return BadRequest(f"the server answered {status}: {message}")


def _foreign(status: int, body: bytes) -> str:
    """What a body says that is not an OpenAI-compatible server's; of a page of HTML only its status."""
    text = body[:200].decode("utf-8", "replace").strip()
    if text and not text.startswith("<"):
        return text
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "an unknown status"
    why = "; a proxy before it can't reach it" if status in (502, 503, 504) else ""
    return f"{phrase}{why}"


class ApiClient:
    """Blocking calls to one server. ``url`` ends in ``/v1``."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = httpx2.Client(headers=headers(api_key), timeout=_TIMEOUT)

    def models(self) -> list[str]:
        """Names the server answers to, at least one. Raises ``Unavailable``."""
        with self._in_words():
            response = self._http.get(f"{self.url}/models")
        if response.status_code != 200:
            raise refusal(response.status_code, response.content)
        try:
            names = [str(model["id"]) for model in response.json()["data"]]
        except (ValueError, KeyError, TypeError):
            raise Unavailable(f"the server at {self.url} is not OpenAI-compatible") from None
        if not names:
            raise Unavailable(f"the server at {self.url} serves no model")
        return names

    def order(self, path: str) -> None:
        """Post nothing to a route outside of ``/v1``. Raises what the server answers with."""
        with self._in_words():
            response = self._http.post(f"{self.url.removesuffix('/v1')}/{path}")
        if response.status_code != 200:
            raise refusal(response.status_code, response.content)

    def stream(self, path: str, body: Mapping[str, Any]) -> Generator[dict[str, Any]]:
        """Events of a streamed answer; closing the iterator closes the connection, which aborts the request."""
        with (
            self._in_words(),
            self._http.stream("POST", f"{self.url}/{path}", json={**body, "stream": True}) as response,
        ):
            if response.status_code != 200:
                raise refusal(response.status_code, response.read())
            yield from events(response.iter_lines())

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as cause:
            raise Unavailable(f"no server answers at {self.url} ({cause}); start one with: lsv serve") from cause
        except httpx2.TimeoutException as cause:
            raise Unavailable(f"the server at {self.url} did not answer in time") from cause
        except httpx2.TransportError as cause:
            raise Unavailable(f"{_CUT} ({cause})") from cause
