"""POST /v1/audio/transcriptions and POST /v1/audio/translations."""

from __future__ import annotations

import math
import zlib
from collections.abc import AsyncGenerator, Iterator, Sequence

import msgspec
from sanic.response import HTTPResponse

from lsv.engine.answers import Answer
from lsv.media.content_parts import Reference, refusal
from lsv.media.transcriber import Task, Transcriber
from lsv.request.params import SamplingParams
from lsv.request.prompt import Prompt
from lsv_api.http.context import Exchange, Served
from lsv_api.http.failures import Unsupported
from lsv_api.http.reply import json_response, stream_response
from lsv_api.http.sse import event
from lsv_api.openai.generation import make_request
from lsv_api.openai.prompts import TextRule, encode_text
from lsv_api.openai.sampling import bounded, requested_params
from lsv_api.records.requests import SpeechRequest
from lsv_api.records.responses import (
    InputTokens,
    Seconds,
    Segment,
    SpeechUsage,
    TranscriptEvent,
    Transcription,
    VerboseTranscription,
)
from lsv_api.speech.subtitles import srt, vtt
from lsv_api.speech.transcription import Piece, SpeechModel, TranscriptionJob, TranscriptionRunner
from lsv_base.errors import BadRequest, TooLarge

TIMED = ("verbose_json", "srt", "vtt")
"""Formats that need timestamps."""


async def create_transcription(exchange: Exchange) -> HTTPResponse | None:
    return await _create(exchange, "transcribe")


async def create_translation(exchange: Exchange) -> HTTPResponse | None:
    return await _create(exchange, "translate")


async def _create(exchange: Exchange, task: Task) -> HTTPResponse | None:
    body = await exchange.form(SpeechRequest)
    served = exchange.served(body.model)
    _check_format(body)
    model = _speech_model(served)
    _check_size(len(body.file), model.media.options.limits.bytes)
    job = await _make_job(body, task, served, model.transcriber, exchange)
    runner = TranscriptionRunner(job, body, served, model, exchange)
    writer = SpeechWriter(body, job, served, model.transcriber)
    if body.stream:
        await stream_response(exchange, writer.events(runner))
        return None
    return await writer.whole(runner)


def _check_format(body: SpeechRequest) -> None:
    wanted = body.timestamp_granularities or []
    if "word" in wanted:
        raise Unsupported(
            "timestamp_granularities: word is not available on this server, segment is", param="timestamp_granularities"
        )
    if wanted and body.response_format != "verbose_json":
        raise BadRequest(
            "timestamp_granularities needs response_format to be verbose_json", param="timestamp_granularities"
        )
    if body.stream and body.response_format in TIMED:
        raise BadRequest(f"{body.response_format} can't be streamed; set stream to false", param="stream")


def _speech_model(served: Served) -> SpeechModel:
    """Raises ``BadRequest`` for a model that does not transcribe."""
    media, sound = served.client.media, Reference("audio", "file")
    if media is None:
        raise refusal(sound, (), served.client.config.wrapper)
    media.check([sound])
    if media.transcriber is None:
        raise BadRequest(
            "this model takes audio in chats but does not transcribe: send it to /v1/chat/completions",
            param="model",
        )
    return SpeechModel(media, media.transcriber)


def _check_size(size: int, most: int) -> None:
    if not size:
        raise BadRequest("file: the file is empty", param="file")
    if size > most:
        raise TooLarge(f"file: the file has more than {most / (1 << 20):g} MiB (--max-media-mb)", param="file")


async def _make_job(
    body: SpeechRequest, task: Task, served: Served, transcriber: Transcriber, exchange: Exchange
) -> TranscriptionJob:
    """Raises ``BadRequest``, before any audio has been decoded."""
    id = f"{'transcription' if task == 'transcribe' else 'translation'}-{exchange.key}"
    language = _code(body.language, transcriber)
    preceding = f" {body.prompt.strip()}" if body.prompt else ""
    before: tuple[int, ...] = ()
    if preceding:
        before = tuple(await encode_text(preceding, served, exchange, TextRule("prompt", special=False)))
    timed, scored = body.response_format in TIMED, body.response_format == "verbose_json"
    prompt = transcriber.prompt(task, language or next(iter(transcriber.languages)), timed=timed, before=before)
    params = SamplingParams(
        **{"temperature": 0.0, **requested_params(body, served)},
        max_tokens=bounded(body.max_completion_tokens),
        detokenize=not timed,
        logprobs=0 if scored else None,
        logits_processors=transcriber.logits_processors(timed=timed),
    )
    # pieces have prompts of the same length, so what one may have is what all may have
    admitted = served.admission.admit(make_request(body, [Prompt(ids=prompt)], params, id, exchange), strict=True)
    assert admitted.sampling is not None
    return TranscriptionJob(
        id=id,
        task=task,
        language=language,
        before=before,
        params=admitted.sampling,
        timed=timed,
        scored=scored,
    )


def _code(language: str | None, transcriber: Transcriber) -> str | None:
    """The code of a language given by its code or English name; None where it has to be detected."""
    if language is None:
        return next(iter(transcriber.languages)) if len(transcriber.languages) == 1 else None
    given = language.strip().lower()
    return next((code for code, name in transcriber.languages.items() if name == given), given)


class Transcript(msgspec.Struct):
    """The transcription of a piece, as far as it has come."""

    piece: Piece
    answer: Answer


class SpeechWriter:
    """Writes transcripts in the format that the request asks for."""

    def __init__(self, body: SpeechRequest, job: TranscriptionJob, served: Served, transcriber: Transcriber) -> None:
        self._form = body.response_format
        self._job = job
        self._decode = served.client.tokenizer.decode
        self._transcriber = transcriber

    async def whole(self, runner: TranscriptionRunner) -> HTTPResponse:
        transcripts: list[Transcript] = []
        async with runner.run() as chunks:
            async for piece, chunk in chunks:
                if not transcripts or transcripts[-1].piece is not piece:
                    transcripts.append(Transcript(piece, Answer()))
                transcripts[-1].answer.add(chunk)
        if self._job.timed:
            return self._timed(transcripts)
        text = "".join(one.answer.text for one in transcripts).strip()
        if self._form == "text":
            return _plain(f"{text}\n")
        return json_response(Transcription(text=text, usage=_seconds(transcripts)))

    async def events(self, runner: TranscriptionRunner) -> AsyncGenerator[bytes, None]:
        text: list[str] = []
        pieces: list[Piece] = []
        tokens = 0
        async with runner.run() as chunks:
            async for piece, chunk in chunks:
                tokens += len(chunk.ids)
                if not pieces or pieces[-1] is not piece:
                    pieces.append(piece)
                delta = chunk.text if text else chunk.text.lstrip()
                if delta:
                    text.append(delta)
                    yield event(TranscriptEvent(type="transcript.text.delta", delta=delta))
        usage = _usage(pieces, tokens)
        yield event(TranscriptEvent(type="transcript.text.done", text="".join(text), usage=usage))

    def _timed(self, transcripts: Sequence[Transcript]) -> HTTPResponse:
        segments = [
            msgspec.structs.replace(segment, id=number)
            for number, segment in enumerate(segment for one in transcripts for segment in self._segments(one))
        ]
        if self._form != "verbose_json":
            return _plain(srt(segments) if self._form == "srt" else vtt(segments))
        return json_response(
            VerboseTranscription(
                task=self._job.task,
                language=self._language(transcripts[0].piece),
                duration=transcripts[0].piece.total,
                text="".join(segment.text for segment in segments).strip(),
                segments=segments,
                usage=_seconds(transcripts),
            )
        )

    def _language(self, piece: Piece) -> str:
        """Of the text, by its name."""
        return self._transcriber.languages[piece.language] if self._job.task == "transcribe" else "english"

    def _segments(self, transcript: Transcript) -> Iterator[Segment]:
        piece = transcript.piece
        spans = self._transcriber.spans(transcript.answer.ids, piece.stop - piece.start)
        texts = [self._decode(span.ids) for span in spans]
        ratio = _compression("".join(texts))
        for span, text in zip(spans, texts, strict=True):
            if text.strip():
                yield Segment(
                    id=0,
                    seek=int(piece.start * 100),
                    start=_rounded(piece.start + span.start),
                    end=_rounded(piece.start + span.stop),
                    text=text,
                    tokens=list(span.ids),
                    temperature=self._job.params.temperature,
                    avg_logprob=transcript.answer.mean_logprob,
                    compression_ratio=ratio,
                    no_speech_prob=piece.silence,
                )


def _seconds(transcripts: Sequence[Transcript]) -> Seconds:
    return Seconds(seconds=math.ceil(transcripts[0].piece.total))


def _usage(pieces: Sequence[Piece], tokens: int) -> SpeechUsage:
    text, audio = sum(piece.tokens for piece in pieces), sum(piece.audio_tokens for piece in pieces)
    return SpeechUsage(
        input_tokens=text + audio,
        output_tokens=tokens,
        total_tokens=text + audio + tokens,
        input_token_details=InputTokens(text_tokens=text, audio_tokens=audio),
    )


def _compression(text: str) -> float:
    """How many times shorter a text becomes: a high ratio shows that the model repeats itself."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def _rounded(seconds: float) -> float:
    """To milliseconds: sums of binary fractions have digits that nobody wants to read."""
    return round(seconds, 3)


def _plain(text: str) -> HTTPResponse:
    return HTTPResponse(text, content_type="text/plain; charset=utf-8")
