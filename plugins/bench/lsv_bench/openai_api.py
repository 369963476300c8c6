"""A thin client of any OpenAI-compatible server, for the terminal commands and the load generator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2

from lsv.errors import BadRequest, LsvError, Unavailable

_TIMEOUT = httpx2.Timeout(3600.0, connect=10.0)


def headers(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, up to ``[DONE]``; raises ``BadRequest`` on an error event."""
    for line in lines:
        found = _event(line)
        if found is not None:
            yield found


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("data:"):
        return None
    data = line[5:].strip()
    if data == "[DONE]":
        return None
    event: dict[str, Any] = json.loads(data)
    if "error" in event:
        raise BadRequest(str(event["error"].get("message", event["error"])))
    return event


def refusal(status: int, body: bytes) -> LsvError:
    """The error a server answered with."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode("utf-8", "replace")
    return BadRequest(f"the server answered {status}: {message}")


class ApiClient:
    """Blocking calls to one server. ``url`` ends in ``/v1``."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = httpx2.Client(headers=headers(api_key), timeout=_TIMEOUT)

    def models(self) -> list[str]:
        """Names the server answers to."""
        try:
            response = self._http.get(f"{self.url}/models")
        except httpx2.TransportError as cause:
            raise self._unreachable(cause) from cause
        if response.status_code != 200:
            raise refusal(response.status_code, response.content)
        return [model["id"] for model in response.json()["data"]]

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Events of a streamed answer; closing the iterator closes the connection, which aborts the request."""
        try:
            with self._http.stream("POST", f"{self.url}/{path}", json={**body, "stream": True}) as response:
                if response.status_code != 200:
                    raise refusal(response.status_code, response.read())
                yield from events(response.iter_lines())
        except httpx2.TransportError as cause:
            raise self._unreachable(cause) from cause

    def _unreachable(self, cause: Exception) -> LsvError:
        return Unavailable(f"no server answers at {self.url} ({cause}); start one with: lsv serve")
