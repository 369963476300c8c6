"""Transcriptions and translations over a fake engine: forms in, words with or without their times out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, ClassVar

import httpx2
import msgspec
import openai
import pytest

from lsv.media.content_parts import Reference
from lsv.media.items import AudioChunk, Encoded, Prepared
from lsv.media.options import Limits, MediaOptions
from lsv.media.processor import Processed
from lsv.media.transcriber import Span
from lsv.request.media import Media, Modality
from lsv.request.outputs import Chunk, TokenLogprob
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv_api.speech.transcription import AT_ONCE
from lsv_base.errors import BadRequest, Overloaded
from lsv_base.processes.side.turns import Owner
from lsv_testing.fakes.client import FakeClient
from suite.sites import Site

PATH = "/v1/audio/transcriptions"
WORDS = ("0 Hello there.2", "0 How are2 you?5", "0 Fine.1")
"""What is said in the pieces of the sound; a digit marks the second."""


class Codes:
    """A transcriber whose prompts are letters, and whose time marks are digits."""

    seconds = 5.0
    languages: Mapping[str, str] = {"en": "english", "de": "german"}

    def prompt(self, task: str, language: str, *, timed: bool, before: Sequence[int] = ()) -> tuple[int, ...]:
        if language not in self.languages:
            raise BadRequest(f"language: this model does not know {language!r}", param="language")
        return (*before, *f"{task[:6]} {language}{' timed' * timed}".encode())

    def logits_processors(self, *, timed: bool) -> Mapping[str, Any]:
        return {"codes": {"timed": timed}}

    def ask_language(self) -> tuple[tuple[int, ...], Mapping[int, str]]:
        return tuple(b"language"), {ord("e"): "en", ord("d"): "de"}

    def ask_silence(self) -> tuple[tuple[int, ...], int] | None:
        return tuple(b"silence"), ord("s")

    def spans(self, ids: Sequence[int], seconds: float) -> tuple[Span, ...]:
        found, start, text = [], 0.0, []
        for token in ids:
            if token in tuple(b"0123456789"):
                if text:
                    found.append(Span(start, float(chr(token)), tuple(text)))
                start, text = float(chr(token)), []
            elif token < 256:
                text.append(token)
        return tuple([*found, Span(start, seconds, tuple(text))] if text else found)


class Ear:
    """A media service that splits all audio into the chunks of ``WORDS``; ``gap`` seconds pass before each."""

    transcriber: Any = Codes()
    modalities = allowed = ("audio",)
    marks: ClassVar[Mapping[Modality, str]] = {}

    def __init__(self, pieces: int = len(WORDS), limit: int = 1 << 20) -> None:
        self.options = MediaOptions(limits=Limits(bytes=limit))
        self.pieces, self.gap = pieces, 0.0
        self.failure: Exception | None = None
        self.heard: list[bytes] = []

    def check(self, references: Sequence[Reference]) -> None:
        pass

    async def split_audio(self, audio: Encoded, seconds: float, owner: Owner) -> AsyncGenerator[AudioChunk, None]:
        self.heard.append(audio.data)
        for index in range(self.pieces):
            await asyncio.sleep(self.gap)
            if self.failure is not None and index == self.pieces - 1:
                raise self.failure
            item = Prepared("audio", bytes([index]) * 32, Processed({}, (), 0, 10, cross=True))
            yield AudioChunk(index * 5.0, index * 5.0 + 5.0, self.pieces * 5.0 - 0.5, item)

    def place(self, ids: Sequence[int], items: Sequence[Prepared]) -> Prompt:
        media = [Media(item.hash, item.modality, 0, item.processed.count, cross=True) for item in items]
        return Prompt(ids=tuple(ids), media=tuple(media))


class Listening(FakeClient):
    """Says what stands in ``WORDS`` for a piece; takes the first of the tokens that are allowed, where not all are."""

    def __init__(self, ear: Ear | None) -> None:
        super().__init__()
        self.media: Any = ear
        self.words: Sequence[str] = WORDS
        self.slow: dict[int, float] = {}
        self.most = self.running = 0

    async def generate(self, request: RequestSpec) -> AsyncGenerator[Chunk, None]:
        index, params = request.prompt.media[0].hash[0], request.sampling
        if params.allowed_token_ids is not None:
            self.requests.append(request)
            token = params.allowed_token_ids[0]
            yield Chunk(ids=(token,), logprobs=((TokenLogprob(token, "", -0.5, 1),),), finish=FinishReason.LENGTH)
            return
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.slow.get(index, 0))
        words = self.words[index % len(self.words)]
        timed = params.logits_processors == {"codes": {"timed": True}}
        self.answer = words if timed else words.translate(dict.fromkeys(b"0123456789"))
        try:
            async for chunk in super().generate(request):
                yield chunk
        finally:
            self.running -= 1


@pytest.fixture
def engine() -> Listening:
    return Listening(Ear())


@pytest.fixture
async def site(start: Any, engine: Listening) -> Site:
    return await start(engine=engine)


async def hear(site: Site, file: bytes = b"sound", path: str = PATH, **fields: Any) -> httpx2.Response:
    return await site.http.post(path, files={"file": ("a.wav", file)}, data=fields)


def wishes(engine: Listening, name: str = "-0") -> tuple[str, SamplingParams]:
    """The prompt and the parameters of a piece's request."""
    (found,) = [request for request in engine.requests if request.request_id.endswith(name)]
    return bytes(found.prompt.ids).decode(), found.sampling


@pytest.mark.row("F-104")
async def test_words_in_order(site: Site, engine: Listening) -> None:
    engine.slow = {0: 0.05}
    answer = await hear(site)
    assert answer.json() == {
        "text": "Hello there. How are you? Fine.",
        "usage": {"type": "duration", "seconds": 15},
    }
    assert engine.media.heard == [b"sound"]
    assert engine.most == 3
    text = await hear(site, response_format="text")
    assert (text.text, text.headers["content-type"]) == (
        "Hello there. How are you? Fine.\n", "text/plain; charset=utf-8",
    )  # fmt: skip


async def test_words_with_their_times(site: Site) -> None:
    answer = (await hear(site, response_format="verbose_json")).json()
    segments = answer.pop("segments")
    assert answer == {
        "task": "transcribe",
        "language": "english",
        "duration": 14.5,
        "text": "Hello there. How are you? Fine.",
        "usage": {"type": "duration", "seconds": 15},
    }
    assert [(one["id"], one["seek"], one["start"], one["end"], one["text"]) for one in segments] == [
        (0, 0, 0.0, 2.0, " Hello there."), (1, 500, 5.0, 7.0, " How are"), (2, 500, 7.0, 10.0, " you?"),
        (3, 1000, 10.0, 11.0, " Fine."),
    ]  # fmt: skip
    assert bytes(segments[1]["tokens"]) == b" How are"
    assert segments[0]["avg_logprob"] == -0.25
    assert segments[0]["no_speech_prob"] == pytest.approx(0.6065, abs=1e-4)
    assert segments[1]["compression_ratio"] == pytest.approx(13 / 21)
    assert segments[0]["temperature"] == 0.0


async def test_subtitles(site: Site, engine: Listening) -> None:
    engine.words = ("0 Hello\nthere.1 -->2", "", "0 3599 more.4")
    engine.media.pieces = 1
    assert (await hear(site, response_format="srt")).text == (
        "1\n00:00:00,000 --> 00:00:01,000\nHello there.\n\n2\n00:00:01,000 --> 00:00:02,000\n->\n\n"
    )
    assert (await hear(site, response_format="vtt")).text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nHello there.\n\n00:00:01.000 --> 00:00:02.000\n->\n\n"
    )


async def test_a_sound_without_words(site: Site, engine: Listening) -> None:
    engine.words = ("0 ",)
    for form, expected in (("srt", ""), ("vtt", "WEBVTT\n\n"), ("text", "\n")):
        assert (await hear(site, response_format=form)).text == expected
    assert (await hear(site, response_format="verbose_json")).json()["segments"] == []


async def test_streams(site: Site, engine: Listening) -> None:
    engine.pace = 0.001
    answer = await hear(site, stream="true")
    assert answer.headers["content-type"] == "text/event-stream"
    *lines, last = answer.text.strip().split("\n\n")
    *deltas, done = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]
    assert last == "data: [DONE]"
    assert {event["type"] for event in deltas} == {"transcript.text.delta"}
    assert "".join(event["delta"] for event in deltas) == done["text"] == "Hello there. How are you? Fine."
    assert done["type"] == "transcript.text.done"
    assert done["usage"] == {
        "type": "tokens", "input_tokens": 57, "output_tokens": 35, "total_tokens": 92,
        "input_token_details": {"text_tokens": 27, "audio_tokens": 30},
    }  # fmt: skip


async def test_what_the_engine_is_asked(site: Site, engine: Listening) -> None:
    await hear(site, language="DE", prompt="Names", temperature="0.7", seed="5", max_completion_tokens="9", top_p="0.5")
    prompt, params = wishes(engine)
    assert prompt == " Namestransc de"
    assert (params.temperature, params.seed, params.max_tokens, params.top_p) == (0.7, 5, 9, 0.5)
    assert params.logits_processors == {"codes": {"timed": False}}
    assert params.detokenize
    assert [request.request_id.rsplit("-", 1)[1] for request in engine.requests] == ["0", "1", "2"]


async def test_defaults(site: Site, engine: Listening) -> None:
    await hear(site, language="german", response_format="verbose_json")
    prompt, params = wishes(engine)
    assert prompt == "transc de timed"
    assert (params.temperature, params.max_tokens, params.logprobs) == (0.0, 512 - len(prompt), 0)
    assert not params.detokenize


async def test_the_language_is_found_out_once(site: Site, engine: Listening) -> None:
    await hear(site)
    assert wishes(engine, "-language")[0] == "language"
    assert wishes(engine, "-language")[1].allowed_token_ids == tuple(b"ed")
    assert [wishes(engine, f"-{index}")[0] for index in range(3)] == ["transc en"] * 3


async def test_translations(site: Site, engine: Listening) -> None:
    answer = await hear(site, path="/v1/audio/translations", language="de", response_format="verbose_json")
    assert (answer.json()["task"], answer.json()["language"]) == ("translate", "english")
    assert wishes(engine)[0] == "transl de timed"


@pytest.mark.parametrize(
    ("fields", "status", "param", "message"),
    [
        ({"language": "xx"}, 400, "language", "does not know 'xx'"),
        ({"file": b""}, 400, "file", "empty"),
        ({"file": b"x" * 200}, 413, "file", "--max-media-mb"),
        ({"model": "other"}, 404, "model", "does not exist"),
        ({"timestamp_granularities[]": ["word"], "response_format": "verbose_json"}, 400, "timestamp_granularities",
         "word is not available"),
        ({"timestamp_granularities[]": ["segment"]}, 400, "timestamp_granularities", "to be verbose_json"),
        ({"stream": "true", "response_format": "vtt"}, 400, "stream", "vtt can't be streamed"),
        ({"temperature": "-1"}, 400, "temperature", "between"),
        ({"max_completion_tokens": "9999"}, 400, "prompt", "maximum context length"),
        ({"prompt": "x" * 600}, 400, "prompt", "maximum context length"),
        ({"priority": "99999999999"}, 400, "priority", "priority must be"),
    ],
)  # fmt: skip
async def test_what_is_refused(start: Any, fields: dict[str, Any], status: int, param: str, message: str) -> None:
    engine = Listening(Ear(limit=100))
    answer = await hear(await start(engine=engine), **fields)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == (error["type"], param)
    assert message in error["message"]
    assert not engine.requests


async def test_models_that_do_not_transcribe_say_so(start: Any) -> None:
    deaf, chatty = Listening(None), Listening(Ear())
    chatty.media.transcriber = None
    for engine, message in ((deaf, "takes text, but no audio"), (chatty, "does not transcribe")):
        site = await start(engine=engine)
        answer = await hear(site)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
        assert PATH not in (await site.http.get("/openapi.json")).json()["paths"]


async def test_a_model_that_only_transcribes_does_not_converse(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Listening(Ear())
    monkeypatch.setattr(engine.tokenizer, "has_chat_template", False)
    answer = await (await start(engine=engine)).chat()
    assert answer.status_code == 400
    assert "send audio to /v1/audio/transcriptions" in answer.json()["error"]["message"]


async def test_the_description_has_a_form(site: Site) -> None:
    described = (await site.http.get("/openapi.json")).json()
    body = described["paths"][PATH]["post"]["requestBody"]["content"]
    assert list(body) == ["multipart/form-data"]
    file = described["components"]["schemas"]["SpeechRequest"]["properties"]["file"]
    assert file == {"type": "string", "format": "binary"}


async def test_sounds_that_cannot_be_cut_are_named(site: Site, engine: Listening) -> None:
    engine.media.failure = BadRequest("the sound is damaged")
    engine.pace = 0.01
    for pieces in (1, 3):
        engine.media.pieces = pieces
        for stream in ("true", "false"):
            answer = await hear(site, stream=stream)
            if pieces == 1 or stream == "false":
                assert answer.status_code == 400
                assert answer.json()["error"]["param"] == "file"
            assert "file: the sound is damaged" in answer.text


async def test_a_piece_that_fails_fails_the_answer(site: Site, engine: Listening) -> None:
    engine.failure, engine.fail_after = Overloaded("the queue is full"), 3
    assert (await hear(site)).status_code == 429
    answer = await hear(site, stream="true")
    assert '"code":"overloaded"' in answer.text


async def test_a_long_sound_does_not_fill_the_queue(site: Site, engine: Listening) -> None:
    engine.media.pieces = 3 * AT_ONCE
    engine.pace = 0.001
    answer = (await hear(site)).json()
    assert answer["text"].count("Fine.") == AT_ONCE
    assert engine.most == AT_ONCE


async def test_whoever_leaves_aborts_what_is_under_way(site: Site, engine: Listening) -> None:
    engine.pace, engine.media.pieces = 0.05, 40
    for stream in ("true", "false"):
        hearing = asyncio.create_task(hear(site, stream=stream))
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if engine.running >= AT_ONCE:
                break
        hearing.cancel()
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if not engine.running:
                break
        assert not engine.running
        assert len(engine.aborted) >= AT_ONCE
        engine.aborted.clear()
    assert site.app.ctx.api.traffic.running == 0


async def test_the_log_and_the_metrics_count_it(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "lsv.api"):
        await hear(site, language="en")
    (line,) = [record.message for record in caplog.records if record.name == "lsv.api" and PATH in record.message]
    assert "prompt_tokens=27 tokens=35" in line
    assert "200" in line
    assert f'lsv:http_requests_total{{route="{PATH}",status="200"}} 1.0' in (await site.http.get("/metrics")).text


@pytest.mark.row("F-104", "F-711", "F-745")
async def test_the_openai_client(site: Site) -> None:
    client = site.openai.audio
    sound = ("a.wav", b"sound")
    plain = await client.transcriptions.create(file=sound, model="fake", language="en", extra_body={"top_k": 5})
    assert plain.text == "Hello there. How are you? Fine."
    assert plain.usage.type == "duration"
    verbose = await client.transcriptions.create(
        file=sound, model="fake", response_format="verbose_json", timestamp_granularities=["segment"]
    )
    assert verbose.duration == 14.5
    assert [segment.end for segment in verbose.segments] == [2.0, 7.0, 10.0, 11.0]
    assert (await client.translations.create(file=sound, model="fake")).text == plain.text
    subtitles = await client.transcriptions.create(file=sound, model="fake", response_format="srt")
    assert subtitles.startswith("1\n00:00:00,000")
    events = [event async for event in await client.transcriptions.create(file=sound, model="fake", stream=True)]
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == plain.text
    with pytest.raises(openai.BadRequestError, match="does not know 'xx'"):
        await client.transcriptions.create(file=sound, model="fake", language="xx")
