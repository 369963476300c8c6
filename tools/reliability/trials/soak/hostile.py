"""Visits that try to harm other clients: abandoned large bodies, expensive grammars, and fake adapters."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx2

from trials.soak.visits import Failed, Visit, Wrong

AMBIGUOUS = 'start: e\ne: e e | e e e | e e e e | "a" | "b" | "ab" | "ba"\n'
"""An ambiguous grammar: each token has more derivations than the previous one."""
_PROMPTS, _LETTERS = 70, 1000
"""A body of over 64 KiB, which a server reads in several pieces."""


class HostileVisits:
    """Kinds of visits by name with their weights; ``folder`` is where adapters are made."""

    def __init__(self, folder: Path) -> None:
        self._adapters = make_adapters(folder)
        self.kinds: dict[str, tuple[int, Visit]] = {
            "left large body": (2, self._leave_large_body),
            "ambiguous grammar": (2, self._ask_ambiguous),
            "hostile adapter": (2, self._load_hostile),
        }

    async def _leave_large_body(self, http: httpx2.AsyncClient, rng: Random) -> None:
        """Send a large body, then leave. After the load, the soak checks what the server still holds of it."""
        prompts = [chr(97 + rng.randrange(26)) * _LETTERS for _ in range(_PROMPTS)]
        body = {"prompt": prompts, "max_tokens": 50, "ignore_eos": True, "stream": rng.random() < 0.5}
        writer = await _send(http, "/v1/completions", body)
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _ask_ambiguous(self, http: httpx2.AsyncClient, rng: Random) -> None:
        """Either followed or refused as too hard. Another stream measures how long others wait."""
        body = {"prompt": "a", "max_tokens": rng.choice([20, 60]), "guided_grammar": AMBIGUOUS, "temperature": 1.0}
        reply = await http.post("/v1/completions", json=body)
        if reply.status_code >= 500:
            raise Failed(f"{reply.status_code} for an ambiguous grammar: {reply.text[:300]}")
        text = reply.json()["choices"][0]["text"] if reply.status_code == 200 else ""
        if set(text) - set("ab"):
            raise Wrong(f"{text!r} does not follow the grammar")

    async def _load_hostile(self, http: httpx2.AsyncClient, rng: Random) -> None:
        """Each is refused with its own error, within the usual time limit."""
        kind = rng.choice(sorted(self._adapters))
        name = f"{kind}-{rng.randrange(1 << 30)}"
        body = {"lora_name": name, "lora_path": str(self._adapters[kind])}
        reply = await http.post("/v1/load_lora_adapter", json=body)
        if reply.status_code == 200:
            raise Wrong(f"an adapter whose files are {kind} was loaded")
        if reply.status_code >= 500:
            raise Failed(f"{reply.status_code} for an adapter whose files are {kind}: {reply.text[:300]}")


def make_adapters(folder: Path) -> dict[str, Path]:
    """Folders that look like adapters, by what is wrong with them."""
    makers: dict[str, Callable[[Path], None]] = {
        "pipes": lambda path: os.mkfifo(path / "adapter_config.json"),
        "endless": lambda path: (path / "adapter_config.json").symlink_to("/dev/zero"),
        "huge": _make_sparse,
        "patterns": lambda path: _write_config(path, alpha_pattern={"(([a-z_.0-9]+)+)+!": 8}),
        "text": lambda path: _write(path, "not JSON"),
    }
    found = {}
    for name, make in makers.items():
        found[name] = folder / name
        if not found[name].exists():
            found[name].mkdir(parents=True)
            make(found[name])
    return found


def _write_config(path: Path, **keys: Any) -> None:
    given = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **keys}
    _write(path, json.dumps(given))


def _write(path: Path, text: str) -> None:
    (path / "adapter_config.json").write_text(text)


def _make_sparse(path: Path) -> None:
    """A sparse file of a terabyte."""
    _write_config(path)
    with (path / "adapter_model.safetensors").open("wb") as file:
        file.truncate(1 << 40)


class GapWatch:
    """The longest time between two tokens of a stream that runs in parallel."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.worst = 0.0
        self.tokens = 0

    async def watch(self) -> None:
        """One stream after the other, until it is cancelled."""
        body = {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "temperature": 0, "stream": True}
        async with httpx2.AsyncClient(base_url=self._url, timeout=None, trust_env=False) as http:
            while True:
                with suppress(httpx2.HTTPError):
                    await self._listen(http, body)
                await asyncio.sleep(0.1)

    async def _listen(self, http: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        last: float | None = None
        async with http.stream("POST", "/v1/completions", json=body) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    now = time.monotonic()
                    if last is not None:
                        self.worst = max(self.worst, now - last)
                    last, self.tokens = now, self.tokens + 1


async def _send(http: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> asyncio.StreamWriter:
    """A complete request on a separate connection, whose answer is not read."""
    data, url = json.dumps(body).encode(), http.base_url
    _, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST {path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    return writer
