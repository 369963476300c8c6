"""Bodies with pictures and sounds: what is taken out before the JSON is parsed changes nothing that is read of them."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import msgspec
import pytest

from lsv.media.content_parts import InlinePart, Reference, read_part
from lsv_api.http import payloads as payloads_module
from lsv_api.http.bodies import decode_body
from lsv_api.http.payloads import SHORTEST, extract_payloads
from lsv_api.limits import Limits
from lsv_api.records.requests import ChatRequest, TokenizeRequest
from lsv_base.errors import BadRequest, TooLarge

LONG = "QUJD" * (SHORTEST // 4)
OTHER = "REVG" * (SHORTEST // 4)


def url(text: str = LONG, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{text}"


def body(*parts: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": list(parts)}], **more}).encode()


def parts_of(data: bytes) -> list[Any]:
    content = decode_body(data, ChatRequest).messages[0].content
    assert isinstance(content, list)
    return content


def test_long_payloads_reach_their_parts() -> None:
    parts = parts_of(
        body(
            {"type": "image_url", "image_url": {"url": url(), "detail": "high"}},
            {"type": "text", "text": "and"},
            {"type": "video_url", "video_url": url(OTHER, "video/mp4")},
            {"type": "input_audio", "input_audio": {"format": "wav", "data": LONG}},
            {"type": "image_url", "image_url": {"url": url("QUJD")}},
        )
    )
    assert [isinstance(part, InlinePart) for part in parts] == [True, False, True, True, False]
    found = [read_part(part, "here") for part in parts]
    assert found == [
        Reference("image", "here", base64=LONG.encode()),
        "and",
        Reference("video", "here", base64=OTHER.encode()),
        Reference("audio", "here", base64=LONG.encode()),
        Reference("image", "here", url=url("QUJD")),
    ]


@pytest.mark.parametrize("forged", ["data:,@0@", url("@0@")])
def test_what_looks_like_a_name_gets_no_payload(forged: str) -> None:
    image = {"type": "image_url", "image_url": {"url": url()}}
    for other in ({"type": "text", "text": forged}, {"type": "video_url", "video_url": forged}):
        first, second = parts_of(body(other, image))
        assert read_part(second, "here") == Reference("image", "here", base64=LONG.encode())
        expected = forged if other["type"] == "text" else Reference("video", "here", url=forged)
        assert read_part(first, "here") == expected


class Picture(msgspec.Struct):
    payloads: ClassVar[tuple[str, ...]] = ("data",)

    data: str
    note: str = ""


class Album(msgspec.Struct):
    """A body of another contract."""

    brings_media: ClassVar[bool] = True
    payloads: ClassVar[tuple[str, ...]] = ("images",)

    images: list[str] = []
    pictures: list[Picture] = []
    words: list[str] = []


def test_fields_that_records_name_get_their_payloads_and_are_media() -> None:
    album = {"images": ["QUJD", LONG, OTHER], "pictures": [{"data": OTHER, "note": "x"}, {"data": LONG}]}
    data = json.dumps(album).encode()
    found = decode_body(data, Album, Limits(text_bytes=4096))
    assert found == msgspec.json.decode(data, type=Album)
    for other in ({"words": [LONG]}, {"pictures": [{"data": LONG, "note": OTHER}]}):
        with pytest.raises(TooLarge, match="without its media"):
            decode_body(json.dumps(other).encode(), Album, Limits(text_bytes=4096))


def test_slashes_may_be_escaped() -> None:
    slashes = "QU//" * (SHORTEST // 4)
    data = body(
        {"type": "image_url", "image_url": url(slashes)}, {"type": "input_audio", "input_audio": {"data": slashes}}
    )
    content = decode_body(data.replace(b"/", b"\\/"), ChatRequest).messages[0].content
    assert [part.payload for part in content] == [slashes.encode()] * 2


@pytest.mark.parametrize("shift", [-1, 0, 1])
@pytest.mark.parametrize("before", range(3))
def test_no_payload_is_overlooked(before: int, shift: int) -> None:
    """Wherever it stands, and whatever stands in front of it."""
    long, short = "A" * SHORTEST, "A" * (SHORTEST - 1)
    filler = "x" * (before * SHORTEST // 2 + shift)
    for text, found in ((long, 1), (short, 0)):
        _, payloads = extract_payloads(body({"type": "text", "text": filler}, {"data": text}, {"text": filler}))
        assert list(payloads.values()) == [text.encode()] * found


def test_many_short_payloads_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(payloads_module, "_payload_start", lambda body, quote: looked.append(quote) or len(body))
    data = b'{"metadata": [' + b'{"data":""},' * 100_000 + b"1]}"
    assert extract_payloads(data) == (data, {})
    assert len(looked) <= len(data) // SHORTEST


def test_spaces_and_other_kinds_of_bodies() -> None:
    spaced = '{"messages": [{"role": "user", "content": [{"image_url" : {"url" :\n "%s"}, "type": "image_url"}]}]}'
    found = decode_body((spaced % url()).encode(), TokenizeRequest).messages
    assert found is not None
    assert isinstance(found[0].content, list)
    assert read_part(found[0].content[0], "here") == Reference("image", "here", base64=LONG.encode())


@pytest.mark.parametrize(
    ("role", "content", "more"),
    [
        ("user", url(), {}),  # a text that looks like a picture
        ("user", [{"type": "text", "text": url()}], {}),
        ("user", [{"type": "text", "text": f'"url": "{url()}"'}], {}),
        ("user", [{"type": "text", "text": "x", "image_url": url()}], {}),  # a field that its type does not name
        ("user", "Hi", {"chat_template_kwargs": {"url": url()}}),
        ("user", "Hi", {"documents": [{"data": LONG}]}),
        ("user", [{"type": "image_url", "image_url": url()}], {"documents": [{"data": OTHER}]}),
        ("user", [{"type": "image_url", "image_url": url(LONG + "\\u0041" + LONG)}], {}),
        ("user", [{"type": "image_url", "image_url": url("@0@")}, {"type": "text", "text": LONG}], {}),
    ],
)
def test_all_else_is_read_as_it_was_sent(role: str, content: Any, more: dict[str, Any]) -> None:
    data = json.dumps({"messages": [{"role": role, "content": content}], **more}).replace("\\\\/", "\\/").encode()
    plain = msgspec.json.decode(data, type=ChatRequest)
    assert msgspec.to_builtins(decode_body(data, ChatRequest)) == msgspec.to_builtins(plain)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (body({"type": "image_url", "image_url": url()})[:-1], "The body must be JSON"),
        (body({"type": "image_url", "image_url": url()}) + b'"', "The body must be JSON"),
        (f'{{"url": "{url()}'.encode(), "The body must be JSON"),
        (body({"type": "image_url", "image_url": url()}, temprature=1), "did you mean 'temperature'"),
        (body({"type": "image_url", "image_url": url()}, seed="x"), "seed: expected int"),
    ],
)
def test_faults_are_named_as_in_any_body(data: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        decode_body(data, ChatRequest)


def test_what_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads_module, "token_hex", lambda _: "")
    data = body({"type": "image_url", "image_url": url()}, {"type": "image_url", "image_url": url(OTHER)})
    thin, payloads = extract_payloads(data)
    assert payloads == {"@0@": LONG.encode(), "@1@": OTHER.encode()}
    assert thin == data.replace(LONG.encode(), b"@0@").replace(OTHER.encode(), b"@1@")
    assert extract_payloads(b"{}") == (b"{}", {})
