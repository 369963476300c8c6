"""A server that can do all the page knows of: scripted answers, media, transcription, metrics under load."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = "Three beeps, then a voice."

OPENAPI = {
    "paths": {"/v1/audio/transcriptions": {}},
    "components": {
        "schemas": {
            "ChatRequest": {
                "properties": {name: {} for name in ("messages", "response_format", "tools", "chat_template_kwargs")}
            }
        }
    },
}

SEGMENTS = ({"start": 0.0, "end": 1.5, "text": " Three beeps,"}, {"start": 1.5, "end": 2.75, "text": " then a voice."})


Written = str | Sequence[Mapping[str, Any]]
"""An answer: its text, or the deltas of its stream."""


class StandIn:
    """Listens on a port of its own. ``models`` are names and what each takes, None for not telling.

    ``tasks`` are what all of them can be asked for. ``answers`` are the answers to questions, ``answer`` to all others,
    each a text or the deltas of its stream; ``pace`` seconds lie between words. ``cut`` ends a stream after so many
    events, and ``page`` is a status and a body that a proxy sends instead. One that is not ``lsv`` has none of its own
    routes.
    """

    def __init__(
        self,
        models: Mapping[str, list[str] | None],
        answers: Mapping[str, Written] | None = None,
        *,
        lsv: bool = True,
        tasks: Sequence[str] = ("generate",),
    ) -> None:
        self.models, self.tasks = models, tasks
        self.answers = answers or {}
        self.answer: Written = "I see and hear it."
        self.lsv = lsv
        self.cut: int | None = None
        self.page: tuple[int, bytes] | None = None
        self.asked: list[str] = []
        self.pace = 0.0
        self.body: dict[str, Any] = {}
        self.form: dict[str, Any] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Exchange", (_Exchange,), {"own": self}))
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def cards(self) -> list[dict[str, Any]]:
        return [
            {"id": name, **({} if taken is None else {"modalities": taken, "tasks": list(self.tasks)})}
            for name, taken in self.models.items()
        ]


class _Exchange(BaseHTTPRequestHandler):
    own: StandIn

    def do_GET(self) -> None:
        if not self.own.lsv and self.path != "/v1/models":
            return self._send(b"", "text/plain", 200 if self.path == "/health" else 404)
        if self.path == "/metrics":
            return self._send(load(time.time()).encode(), "text/plain")
        found: Mapping[str, Any] = {
            "/health": {"status": "ready", "models": []},
            "/v1/models": {"data": self.own.cards()},
            "/openapi.json": OPENAPI,
        }
        return self._send_json(found[self.path])

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.own.page:
            self._send(self.own.page[1], "text/html", self.own.page[0])
        elif self.path == "/v1/audio/transcriptions":
            self._transcribe(read_form(self.headers["content-type"], data))
        elif self.path == "/rerank":
            self.own.body = json.loads(data)
            self._send_json({"results": [{"index": 1, "relevance_score": 0.75}, {"index": 0, "relevance_score": 0.25}]})
        else:
            self.own.body = json.loads(data)
            self._chat(self.own.body["messages"][-1]["content"])

    def _chat(self, content: Any) -> None:
        asked = content if isinstance(content, str) else content[-1].get("text", "")
        self.own.asked.append(asked)
        answer = self.own.answers.get(asked, self.own.answer)
        written = [{"content": piece} for piece in pieces(answer)] if isinstance(answer, str) else answer
        events = [{"choices": [{"delta": delta}]} for delta in written]
        last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": len(written)}}
        self._stream([*events, last])

    def _transcribe(self, form: dict[str, Any]) -> None:
        self.own.form = form
        if form.get("stream") == "true":
            deltas = [{"type": "transcript.text.delta", "delta": piece} for piece in pieces(WORDS)]
            self._stream([*deltas, {"type": "transcript.text.done", "text": WORDS}])
        elif (form_of := form.get("response_format", "json")) == "json":
            self._send_json({"text": WORDS})
        elif form_of == "verbose_json":
            self._send_json({"text": WORDS, "language": "en", "duration": 2.75, "segments": SEGMENTS})
        else:
            self._send(f"({form_of})\n{WORDS}".encode(), "text/plain")

    def _stream(self, events: list[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for event in events[: self.own.cut]:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                time.sleep(self.own.pace)
            if self.own.cut is None:
                self.wfile.write(b"data: [DONE]\n\n")
        except OSError:  # whoever asked has left
            pass
        self.close_connection = True

    def _send_json(self, body: object) -> None:
        self._send(json.dumps(body).encode(), "application/json")

    def _send(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def pieces(text: str) -> list[str]:
    """A text as it is streamed, word by word."""
    return re.findall(r"\s*\S+", text)


def read_form(kind: str, data: bytes) -> dict[str, Any]:
    """The fields of a multipart form, files as their name and content."""
    form = BytesParser(policy=HTTP).parsebytes(f"content-type: {kind}\r\n\r\n".encode() + data)
    fields: dict[str, Any] = {}
    for part in form.iter_parts():  # type: ignore[attr-defined]
        content = part.get_payload(decode=True)
        name = part.get_param("name", header="content-disposition")
        fields[name] = (part.get_filename(), content) if part.get_filename() else content.decode()
    return fields


def load(now: float) -> str:
    """Metrics of a server that is busy, more at times than at others."""
    wave = 1 + math.sin(now / 9) / 3 + math.sin(now / 2.3) / 9
    served, seen = 900 * now + 2000 * math.sin(now / 9), int(40 * now)
    buckets = {"0.01": 0.2, "0.025": 0.55, "0.05": 0.9, "0.1": 0.99, "+Inf": 1.0}
    lines = [
        f"vllm:num_requests_running {round(12 * wave)}",
        f"vllm:num_requests_waiting {max(0, round(9 * wave - 8))}",
        f"vllm:gpu_cache_usage_perc {0.45 * wave:.3f}",
        "# TYPE vllm:prompt_tokens counter",
        f"vllm:prompt_tokens_total {served * 0.6}",
        "# TYPE vllm:generation_tokens counter",
        f"vllm:generation_tokens_total {served}",
    ]
    for name, mean in (("vllm:time_to_first_token_seconds", 0.034), ("vllm:time_per_output_token_seconds", 0.019)):
        lines += [f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{le="{bound}"}} {seen * share:.0f}' for bound, share in buckets.items()]
        lines += [f"{name}_sum {seen * mean + 80 * mean * math.sin(now / 7)}", f"{name}_count {seen}"]
    return "\n".join(lines) + "\n"
