"""Requests that must be refused, whatever else is going on."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

_CHAT, _COMPLETION = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Refused:
    """``content`` is the body's bytes."""

    name: str
    path: str
    content: bytes


def _json(name: str, path: str, **fields: Any) -> Refused:
    return Refused(name, path, json.dumps(fields).encode())


def _shown(name: str, kind: str, url: str) -> Refused:
    part = {"type": f"{kind}_url", f"{kind}_url": {"url": url}}
    return _json(name, _CHAT, messages=[{"role": "user", "content": [part, {"type": "text", "text": "?"}]}])


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _png(width: int, height: int) -> bytes:
    """The head of a picture that says it has so many pixels, and no more."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    checked = b"IHDR" + head
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(head)) + checked + struct.pack(">I", zlib.crc32(checked))


_USER = [{"role": "user", "content": "x"}]
REFUSED = (
    Refused("no JSON", _CHAT, b'{"messages": ['),
    Refused("invalid UTF-8", _COMPLETION, b'{"prompt": "\xff\xfe"}'),
    Refused("deep nesting", _CHAT, b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    Refused("nothing", _CHAT, b""),
    _json("a wrong type", _CHAT, messages="hello"),
    _json("an unknown role's content", _CHAT, messages=[{"role": "user", "content": 5}]),
    _json("no messages", _CHAT, messages=[]),
    _json("a negative temperature", _CHAT, messages=_USER, temperature=-1),
    _json("a huge n", _COMPLETION, prompt="x", n=100_000),
    _json("an unknown model", _CHAT, messages=_USER, model="nobody"),
    _json("a token id that is none", _COMPLETION, prompt=[5, 1 << 40]),
    _json("a prompt over the context", _COMPLETION, prompt="word " * 50_000),
    _json("a prompt of 4 MB", _COMPLETION, prompt="a" * 4_000_000),
    _json("empty stop strings", _COMPLETION, prompt="x", stop=["", ""]),
    _json("a bias that is none", _COMPLETION, prompt="x", logit_bias={"x": 1}),
    _json("a misspelt field", _CHAT, messages=_USER, temperatur=1),
    _json("many prompts times many candidates", _COMPLETION, prompt=["x"] * 1024, n=128),
    _shown("no picture", "image", _data_url("image/png", b"not a picture")),
    _shown("a picture that is cut off", "image", _data_url("image/png", _png(64, 64))),
    _shown("a picture of too many pixels", "image", _data_url("image/png", _png(60_000, 60_000))),
    _shown("a sound that is none", "audio", _data_url("audio/wav", b"RIFF\xff\xff\xff\xffWAVEfmt " + bytes(40))),
    _shown("a clip that is none", "video", _data_url("video/mp4", bytes(64))),
    _shown("a file of the server", "image", "file:///etc/passwd"),
    _shown("an address of the server", "image", "http://127.0.0.1:1/x.png"),
)
