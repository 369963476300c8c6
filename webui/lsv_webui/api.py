"""The server's HTTP API as the page uses it, with errors worded for the person in front of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from lsv_base.errors import BadRequest, LsvError, Unauthorized, Unavailable
from lsv_webui.events import CUT, headers, read_error, read_events

_ANSWER_SECONDS = 3600.0
_STATUS_SECONDS = 5.0
_NO_KEY = "The server needs an API key. Enter yours under Settings."
_OTHER_KEY = "The server does not accept this API key. Enter another one under Settings."
_PAGES_KEY = "The server does not accept the API key of this page. Enter yours under Settings."
_TOO_LONG = "This conversation is too long for the model. Shorten the question or start a new chat."


class Model(NamedTuple):
    """A served model name, the modalities the model takes and what it can be asked for; None where the server does not
    say.
    """

    name: str
    modalities: frozenset[str] | None = None
    tasks: frozenset[str] | None = None

    def takes(self, kind: str) -> bool:
        """Whether it takes files of a kind; assumed so where the server does not say."""
        return self.modalities is None or kind in self.modalities

    @property
    def reranks(self) -> bool:
        """Whether the model is meant for reranking. A generative model may be able to rerank, but does it badly."""
        return self.tasks is not None and "score" in self.tasks and "generate" not in self.tasks


class Ranked(NamedTuple):
    """A text and how well it goes with a question."""

    text: str
    score: float


class Abilities(NamedTuple):
    """What a server can do besides chatting."""

    transcribes: bool = False
    structures: bool = False
    calls: bool = False
    thinks: bool = False

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Abilities:
        """What its ``/openapi.json`` offers."""
        schemas = document.get("components", {}).get("schemas", {})
        chats = [fields for schema in schemas.values() if "messages" in (fields := set(_fields(schema)))]
        return cls(
            transcribes="/v1/audio/transcriptions" in document.get("paths", {}),
            structures=any("response_format" in fields for fields in chats),
            calls=any("tools" in fields for fields in chats),
            thinks=any("chat_template_kwargs" in fields for fields in chats),
        )


class Api:
    """Calls to one OpenAI-compatible server. Each takes a visitor's own key, which replaces the page's.

    What only lsv has (its health, its description of itself) may be missing or be of another form.
    """

    def __init__(self, server: str, api_key: str | None = None) -> None:
        self.server = server
        self._key = api_key
        # Straight to the server: a proxy from the environment is for the internet, which the page never calls.
        self._http = httpx2.AsyncClient(base_url=server, timeout=_STATUS_SECONDS, trust_env=False)

    async def close(self) -> None:
        """Close the connections to the server, in the event loop that made them."""
        await self._http.aclose()

    async def models(self, key: str | None = None) -> list[Model]:
        """The server's models, in its order. Raises ``Unavailable`` where there is none."""
        found = _read_object(await self._get("/v1/models", key)).get("data")
        if not isinstance(found, list):
            raise Unavailable(f"The server at {self.server} is not OpenAI-compatible.")
        if not found:
            raise Unavailable(f"The server at {self.server} serves no model.")
        return [Model(card["id"], _named(card, "modalities"), _named(card, "tasks")) for card in found]

    async def model(self, name: str | None, key: str | None = None) -> Model:
        """The model of that name, or the first one."""
        found = await self.models(key)
        return next((model for model in found if model.name == name), found[0])

    async def abilities(self, key: str | None = None) -> Abilities:
        """What it can do besides chatting, as far as it says so."""
        try:
            return Abilities.of(_read_object(await self._get("/openapi.json", key)))
        except BadRequest:
            return Abilities()

    async def health(self, key: str | None = None) -> dict[str, Any]:
        """The state of the server and its models; a server that is still loading answers, too.

        A server other than lsv that answers is ready.
        """
        response = await self._get("/health", key, accepted=(200, 404, 503))
        found = _read_object(response)
        if "models" in found:
            return found
        if response.status_code == 503:
            raise self._refusal(response.status_code, response.content, key)
        return {"status": "ready", "models": []}

    async def metrics(self, key: str | None = None) -> str:
        """The metrics in Prometheus text format."""
        return (await self._get("/metrics", key)).text

    async def chat(self, body: Mapping[str, Any], key: str | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """Events of a streamed answer, each with the usage so far.

        Closing the iterator closes the connection, which aborts the request.
        """
        usage = {"include_usage": True, "continuous_usage_stats": True}
        body = {**body, "stream": True, "stream_options": usage}
        with self._in_words():
            async with self._http.stream(
                "POST", "/v1/chat/completions", json=body, headers=self._headers(key), timeout=_answering()
            ) as response:
                if response.status_code != 200:
                    raise self._refusal(response.status_code, await response.aread(), key)
                async for event in read_events(response.aiter_lines(), marked=True):
                    yield event

    async def rerank(
        self, question: str, texts: Sequence[str], model: str | None = None, key: str | None = None
    ) -> list[Ranked]:
        """The texts, the one that goes best with the question first."""
        body = {"query": question, "documents": list(texts), **({"model": model} if model else {})}
        with self._in_words():
            response = await self._http.post("/rerank", json=body, headers=self._headers(key), timeout=_answering())
        if response.status_code != 200:
            raise self._refusal(response.status_code, response.content, key)
        return [Ranked(texts[one["index"]], one["relevance_score"]) for one in response.json()["results"]]

    async def transcribe(
        self, path: Path, form: Mapping[str, str], key: str | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The transcript of an audio file: the events of a stream if the form asks for one, else one record.

        Formats that are plain text come as the ``text`` of a record. Closing the iterator aborts the request.
        """
        with self._in_words():
            async with self._http.stream(
                "POST",
                "/v1/audio/transcriptions",
                data=dict(form),
                files={"file": (path.name, await asyncio.to_thread(path.read_bytes))},
                headers=self._headers(key),
                timeout=_answering(),
            ) as response:
                kind = response.headers.get("content-type", "").partition(";")[0]
                if response.status_code != 200:
                    raise self._refusal(response.status_code, await response.aread(), key)
                if kind == "text/event-stream":
                    async for event in read_events(response.aiter_lines()):
                        yield event
                else:
                    body = (await response.aread()).decode()
                    yield json.loads(body) if kind == "application/json" else {"text": body}

    async def _get(self, path: str, key: str | None, accepted: tuple[int, ...] = (200,)) -> httpx2.Response:
        with self._in_words():
            response = await self._http.get(path, headers=self._headers(key))
        if response.status_code not in accepted:
            raise self._refusal(response.status_code, response.content, key)
        return response

    def _refusal(self, status: int, body: bytes, key: str | None) -> LsvError:
        """The server's error. An error about the key says whether the visitor's key, the page's key or no key was
        refused.
        """
        if status == 401:
            return Unauthorized(_OTHER_KEY if key else _PAGES_KEY if self._key else _NO_KEY)
        return refusal(status, body)

    def _headers(self, key: str | None) -> dict[str, str]:
        return headers(key or self._key)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except httpx2.ConnectError:
            raise Unavailable(f"No server answers at {self.server}. Start one with: lsv serve") from None
        except httpx2.TimeoutException:
            raise Unavailable(f"The server at {self.server} did not answer in time. Is it busy or stopped?") from None
        except (httpx2.TransportError, httpx2.StreamError):
            raise Unavailable(CUT) from None


def refusal(status: int, body: bytes) -> LsvError:
    """The error of the server, or of a proxy in front of it, except errors about the key."""
    try:
        told = json.loads(body)
    except ValueError:
        return _foreign(status)
    message = read_error(told)
    error = told.get("error") if isinstance(told, dict) else None
    code, param = (error.get("code"), error.get("param")) if isinstance(error, dict) else (None, None)
    if code == "context_length_exceeded":
        return BadRequest(f"{_TOO_LONG} {_without_fields(message)}".rstrip())
    # Visitors do not write request fields, so a field's name means nothing to them.
    message = message.removeprefix(f"{param}: ")
    return BadRequest(f"{message[:1].upper()}{message[1:]}") if message else _foreign(status)


def _without_fields(message: str) -> str:
    """The sentences that name no field of a request: a visitor can set none."""
    sentences = re.split(r"(?<=\.)\s+", message)
    return " ".join(sentence for sentence in sentences if not re.search(r"[a-z]_[a-z]", sentence))


def _foreign(status: int) -> LsvError:
    """What is said of an answer that an OpenAI-compatible server does not give, such as a page of HTML."""
    phrase = f"{status} {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else str(status)
    if status in (502, 503, 504):
        return Unavailable(f"The proxy before the server can't reach it ({phrase}). Is the server running?")
    return BadRequest(f"The server answered {phrase} and did not say why.")


def _read_object(response: httpx2.Response) -> dict[str, Any]:
    """A JSON object; empty for a body that is none."""
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _named(card: Mapping[str, Any], field: str) -> frozenset[str] | None:
    return frozenset(card[field]) if field in card else None


def _fields(schema: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema.get("properties", {}) if isinstance(schema, dict) else {}
    return found


def _answering() -> httpx2.Timeout:
    return httpx2.Timeout(_ANSWER_SECONDS, connect=_STATUS_SECONDS)
