"""llama.cpp's own server, asked over loopback with token ids; one connection a request."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

START_SECONDS = 120.0
NO_BYTES = [[number, False] for number in range(256)]
"""Tokens of single bytes: random weights put them together to no text, which the server answers with an error."""


class Engine:
    def __init__(self, model: str, threads: int, options: dict[str, Any], room: dict[str, int]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        command = [*options["command"], "--model", model, "--port", str(self._port)]
        self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self._callers = ThreadPoolExecutor(room["sequences"])
        self._wait()

    def generate(self, prompts: list[list[int]], count: int) -> list[int]:
        return list(self._callers.map(lambda prompt: self._complete(prompt, count), prompts))

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()

    def _complete(self, prompt: list[int], count: int) -> int:
        asked = {
            "prompt": prompt, "n_predict": count, "ignore_eos": True, "temperature": 0.0, "cache_prompt": True,
            "logit_bias": NO_BYTES,
        }  # fmt: skip
        status, body = self._ask("POST", "/completion", json.dumps(asked))
        if status != 200:
            raise RuntimeError(f"the server answered {status}: {body[:300]!r}")
        return int(json.loads(body)["tokens_predicted"])

    def _wait(self) -> None:
        until = time.monotonic() + START_SECONDS
        while self._server.poll() is None and time.monotonic() < until:
            try:
                if self._ask("GET", "/health", None)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError("the server did not become ready")

    def _ask(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()
