"""What clients do: ask what has a known answer in many forms, sample, leave early, and send what must be refused."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from random import Random
from typing import Any

import httpx2

from trials.soak.known import Known, text_of
from trials.soak.refused import REFUSED

Visit = Callable[[httpx2.AsyncClient, Random], Awaitable[None]]
"""Raises ``Wrong`` for a wrong answer, ``Failed`` where there is none that a client can use."""


class Wrong(Exception):
    """An answer that differs from the known one."""


class Failed(Exception):
    """No answer: an error status, an error in the stream, or a broken connection."""


class Visits:
    """All kinds of visits by name; ``known`` is what there is to ask, ``vector`` the embedding of ``text``.

    ``more`` are further kinds with their weights.
    """

    def __init__(
        self, known: list[Known], text: str, vector: list[float], more: Mapping[str, tuple[int, Visit]] = {}
    ) -> None:
        self._known = known
        self._prompts = [one for one in known if not one.chat]
        self._chats = [one for one in known if one.chat]
        self._text, self._vector = text, vector
        self.kinds: dict[str, tuple[int, Visit]] = {
            "plain": (20, self._plain),
            "stream": (20, self._stream),
            "candidates": (8, self._candidates),
            "stop string": (8, self._stop),
            "logprobs": (8, self._logprobs),
            "prompts": (4, self._prompt_list),
            "embedding": (6, self._embed),
            "sampled": (12, self._sample),
            "left": (10, self._leave),
            "slow reader": (2, self._read_slowly),
            "refused": (12, self._be_refused),
            **more,
        }

    def draw(self, rng: Random) -> tuple[str, Visit]:
        name = rng.choices(list(self.kinds), [weight for weight, _ in self.kinds.values()])[0]
        return name, self.kinds[name][1]

    async def _plain(self, http: httpx2.AsyncClient, rng: Random) -> None:
        one = rng.choice(self._known)
        _compare(one.text, [text_of(choice) for choice in await _ask(http, one.path, one.body)])

    async def _stream(self, http: httpx2.AsyncClient, rng: Random) -> None:
        one = rng.choice(self._known)
        _compare(one.text, ["".join([piece async for piece in _pieces(http, one.path, one.body)])])

    async def _candidates(self, http: httpx2.AsyncClient, rng: Random) -> None:
        """Candidates are drawn, but with ``top_k`` 1 there is only one to draw."""
        one, n = rng.choice(self._known), rng.randint(2, 5)
        body = {**one.body, "temperature": 0.5, "top_k": 1, "n": n, "seed": rng.randrange(1 << 30)}
        choices = await _ask(http, one.path, body)
        if len(choices) != n:
            raise Wrong(f"{len(choices)} choices, not {n}")
        _compare(one.text, [text_of(choice) for choice in choices])

    async def _stop(self, http: httpx2.AsyncClient, rng: Random) -> None:
        one = rng.choice(self._known)
        start = rng.randrange(len(one.text))
        stop = one.text[start : start + rng.randint(1, 12)]
        body = {**one.body, "stop": [stop, "never in any answer"]}
        _compare(one.text[: one.text.index(stop)], [text_of(choice) for choice in await _ask(http, one.path, body)])

    async def _logprobs(self, http: httpx2.AsyncClient, rng: Random) -> None:
        one, top = rng.choice(self._chats), rng.randint(1, 20)
        choices = await _ask(http, one.path, {**one.body, "logprobs": True, "top_logprobs": top})
        _compare(one.text, [text_of(choice) for choice in choices])
        for token in choices[0]["logprobs"]["content"]:
            if len(token["top_logprobs"]) != top:
                raise Wrong(f"{len(token['top_logprobs'])} log probabilities, not {top}")

    async def _prompt_list(self, http: httpx2.AsyncClient, rng: Random) -> None:
        ones = rng.sample(self._prompts, min(3, len(self._prompts)))
        length = min(one.body["max_tokens"] for one in ones)
        body = {**ones[0].body, "prompt": [one.body["prompt"] for one in ones], "max_tokens": length}
        for one, choice in zip(ones, await _ask(http, ones[0].path, body), strict=True):
            if not one.text.startswith(text_of(choice)):
                raise Wrong(f"{text_of(choice)!r} instead of the beginning of {one.text!r}")

    async def _embed(self, http: httpx2.AsyncClient, rng: Random) -> None:
        reply = await _post(http, "/v1/embeddings", {"input": [self._text, f"other {rng.random()}"]})
        found = reply["data"][0]["embedding"]
        if math.dist(found, self._vector) > 0.02:
            raise Wrong(f"an embedding is {math.dist(found, self._vector):.3g} away from the one without load")

    async def _sample(self, http: httpx2.AsyncClient, rng: Random) -> None:
        """Lengths and options of all kinds; there is no known answer, only one of the right length."""
        one = rng.choice(self._known)
        body = {
            **one.body,
            "temperature": rng.choice([0.3, 1.0, 2.0]), "seed": rng.randrange(1 << 40), "ignore_eos": True,
            "max_tokens": rng.choice([1, 5, 30, 120, 400]), "n": rng.choice([1, 1, 1, 4]),
            "top_p": rng.choice([1.0, 0.9]), "min_p": rng.choice([0.0, 0.05]),
            "presence_penalty": rng.choice([0.0, 1.0]), "repetition_penalty": rng.choice([1.0, 1.1]),
            "truncate_prompt_tokens": 1500,
        }  # fmt: skip
        if not one.chat:
            body["best_of"] = body["n"] + rng.choice([0, 2])
        for choice in await _ask(http, one.path, body):
            if choice["finish_reason"] != "length":
                raise Wrong(f"an answer ended by {choice['finish_reason']}, not at its length")

    async def _leave(self, http: httpx2.AsyncClient, rng: Random) -> None:
        """Before the answer, in the middle of a stream, or in the middle of sending the request. Some bodies are larger
        than what the server reads ahead.
        """
        one = rng.choice(self._known)
        body = {**one.body, "max_tokens": 1000, "ignore_eos": True, "truncate_prompt_tokens": 900}
        how = rng.randrange(3)
        if how == 0:
            await _send_half(http, one.path, body)
            return
        wanted = rng.randint(1, 30)
        try:
            async with asyncio.timeout(rng.uniform(0.0, 3.0)):
                if how == 1:
                    content = json.dumps(body).encode().ljust(rng.choice([0, 100_000]))
                    await http.post(one.path, content=content, headers={"content-type": "application/json"})
                else:
                    async for _ in _pieces(http, one.path, body):
                        wanted -= 1
                        if not wanted:
                            break
        except TimeoutError:
            pass

    async def _read_slowly(self, http: httpx2.AsyncClient, rng: Random) -> None:
        one = rng.choice(self._known)
        pieces = []
        async for piece in _pieces(http, one.path, one.body):
            pieces.append(piece)
            await asyncio.sleep(rng.uniform(0.0, 0.2))
        _compare(one.text, ["".join(pieces)])

    async def _be_refused(self, http: httpx2.AsyncClient, rng: Random) -> None:
        bad = rng.choice(REFUSED)
        reply = await http.post(bad.path, content=bad.content, headers={"content-type": "application/json"})
        if reply.status_code >= 500:
            raise Failed(f"{reply.status_code} for {bad.name}: {reply.text[:300]}")
        if not 400 <= reply.status_code < 500:
            raise Wrong(f"{reply.status_code} for {bad.name}, which must be refused")


def _compare(expected: str, found: list[str]) -> None:
    for text in found:
        if text != expected:
            raise Wrong(f"{text!r} instead of {expected!r}")


async def _post(http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = await http.post(path, json=body)
    if reply.status_code != 200:
        raise Failed(f"{reply.status_code} {reply.text[:300]}")
    answer: dict[str, Any] = reply.json()
    return answer


async def _ask(http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    choices: list[dict[str, Any]] = (await _post(http, path, body))["choices"]
    return choices


async def _pieces(http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> AsyncIterator[str]:
    """The text of a streamed answer, as it comes; leaving the iteration closes the connection."""
    done = False
    async with http.stream("POST", path, json={**body, "stream": True}) as reply:
        if reply.status_code != 200:
            raise Failed(f"{reply.status_code} {(await reply.aread())[:300]!r}")
        async for line in reply.aiter_lines():
            if not line.startswith("data: "):
                continue
            done = line == "data: [DONE]"
            event = {} if done else json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise Failed(f"in the stream: {event['error']}")
            for choice in event.get("choices", ()):
                yield (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""
    if not done:
        raise Wrong("the stream ended without its end mark")


async def _send_half(http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> None:
    """The head of a request and half of its body, then nothing more."""
    data = json.dumps(body).encode()
    url = http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data[: len(data) // 2])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    del reader
