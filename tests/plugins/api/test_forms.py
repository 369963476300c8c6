"""Forms: taken apart as browsers and clients write them, and every fault named."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from lsv_api.http.failures import Unsupported
from lsv_api.http.forms import decode_form
from lsv_api.limits import Limits
from lsv_api.records.requests import SpeechRequest
from lsv_base.errors import BadRequest, TooLarge

TYPE = "multipart/form-data; boundary=xyz"


async def send(file: bytes = b"sound", **fields: Any) -> SpeechRequest:
    """What arrives of a form that the client library has written."""
    request = httpx2.Request("POST", "http://x", files={"file": ("a.wav", file)}, data=fields)
    return decode_form(request.read(), request.headers["content-type"], SpeechRequest)


def form(*parts: bytes, end: bytes = b"--xyz--\r\n") -> bytes:
    return b"".join(b"--xyz\r\n" + part + b"\r\n" for part in parts) + end


FILE = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\nsound'


async def test_texts_become_what_fields_hold() -> None:
    body = await send(
        model="m", temperature="0.5", seed="7", stream="true", top_k="3", prompt="Grüße", language="",
        **{"timestamp_granularities[]": ["segment"]},
    )  # fmt: skip
    assert (body.model, body.temperature, body.seed, body.stream, body.top_k) == ("m", 0.5, 7, True, 3)
    assert (body.prompt, body.language, body.timestamp_granularities) == ("Grüße", None, ["segment"])
    assert body.response_format == "json"


@pytest.mark.parametrize("size", [0, 1, 1000, 100_001])
async def test_files_arrive_as_they_were_sent(size: int) -> None:
    file = random.Random(size).randbytes(size)
    assert (await send(file)).file == file
    tricky = b"\r\n--xy\r\n\r\n--" + file + b"\r\n"
    assert (decode_form(form(FILE[:-5] + tricky), TYPE, SpeechRequest)).file == tricky


async def test_what_the_rfc_allows() -> None:
    model = b"content-disposition:form-data;name=model\r\n\r\nm"
    body = decode_form(b"preamble\r\n" + form(FILE, model, end=b"--xyz--epilogue"), TYPE, SpeechRequest)
    assert (body.file, body.model) == (b"sound", "m")
    assert (decode_form(form(FILE), 'Multipart/Form-Data; boundary="xyz"', SpeechRequest)).file == b"sound"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "cut off"),
        (form(FILE, end=b""), "cut off"),
        (form(FILE, end=b"--xyz\r\n"), "cut off"),
        (form(b"no header"), "a part has no header"),
        (form(b"Content-Type: text/plain\r\n\r\nx"), "a part has no name"),
        (form(b'Content-Disposition: form-data; name=""\r\n\r\nx'), "a part has no name"),
        (form(*[FILE] * 300), "more than 256 parts"),
        (form(), "file is required"),
    ],
)
async def test_damaged_forms_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        decode_form(data, TYPE, SpeechRequest)


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", "multipart/form-data; boundary="])
async def test_other_bodies_are_refused(kind: str) -> None:
    with pytest.raises(BadRequest, match="curl -F"):
        decode_form(form(FILE), kind, SpeechRequest)


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"temperature": "warm"}, BadRequest, "temperature"),
        ({"seed": "1.5"}, BadRequest, "seed"),
        ({"response_format": "yaml"}, BadRequest, "response_format"),
        ({"temprature": "1"}, BadRequest, "temprature"),
        ({"timestamp_granularities[]": "letter"}, BadRequest, "timestamp_granularities[0]"),
        ({"prompt": b"\xff"}, BadRequest, "prompt"),
        ({"use_beam_search": "true"}, Unsupported, "use_beam_search"),
        ({"n": "2"}, Unsupported, "n"),
        ({"max_tokens": "9"}, Unsupported, "max_tokens"),
        ({"stop": "."}, Unsupported, "stop"),
        ({"include[]": "logprobs"}, Unsupported, "include"),
        ({"to_language": "de"}, Unsupported, "to_language"),
        ({"chunking_strategy": '{"type": "server_vad"}'}, Unsupported, "chunking_strategy"),
    ],
)
async def test_faults_name_their_field(fields: dict[str, Any], kind: type[BadRequest], param: str) -> None:
    with pytest.raises(kind) as caught:
        await send(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize("field", ["file", "temperature"])
async def test_a_field_and_its_list_exclude_each_other(field: str) -> None:
    both = [f'Content-Disposition: form-data; name="{field}{end}"\r\n\r\n1'.encode() for end in ("", "[]")]
    for parts in (both, both[::-1]):
        with pytest.raises(BadRequest, match="are one field") as caught:
            decode_form(form(FILE, *parts), TYPE, SpeechRequest)
        assert caught.value.param == field


async def test_texts_have_a_limit_of_their_own() -> None:
    limits = Limits(text_bytes=1000)
    prompt = b'Content-Disposition: form-data; name="prompt"\r\n\r\n' + b"x" * 600
    large = FILE + b"x" * 5000
    assert decode_form(form(large, prompt), TYPE, SpeechRequest, limits).prompt == "x" * 600
    with pytest.raises(TooLarge, match="without its file"):
        decode_form(form(large, prompt, prompt), TYPE, SpeechRequest, limits)


async def test_what_asks_for_nothing_is_accepted() -> None:
    body = await send(use_beam_search="false", n="1", chunking_strategy="auto", length_penalty="1.0", whatever="x")
    assert body.file == b"sound"


async def test_damaged_bytes_never_surprise() -> None:
    chance = random.Random(0)
    whole = form(FILE, b'Content-Disposition: form-data; name="model"\r\n\r\nm')
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(len(data))
            data[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        with suppress(BadRequest):
            assert (decode_form(bytes(data), TYPE, SpeechRequest)).response_format == "json"
