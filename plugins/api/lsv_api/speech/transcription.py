"""Transcribing one audio file: its pieces go through the engine in parallel, and answers keep the audio's order."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import msgspec

from lsv.media.items import AudioChunk, Encoded, Prepared
from lsv.media.service import MediaService
from lsv.media.transcriber import Task, Transcriber
from lsv.request.outputs import Chunk
from lsv.request.params import SamplingParams
from lsv_api.http.context import Exchange, Served
from lsv_api.openai.generation import make_request, run
from lsv_api.records.requests import SpeechRequest
from lsv_base.errors import BadRequest

AT_ONCE = 16
"""Pieces of one audio file that the engine has at a time: a long one must not fill the queue."""

_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)


class TranscriptionJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked about one audio file."""

    id: str
    """Names the answer, and its requests in the engine's logs."""

    task: Task
    """Whether to transcribe or to translate into English."""

    language: str | None
    """The code of the language that is spoken; None to detect it."""

    before: tuple[int, ...]
    """Tokens of preceding text."""

    params: SamplingParams
    """How each piece's answer is generated."""

    timed: bool
    """Whether timestamp tokens are wanted."""

    scored: bool = False
    """Whether the probability of silence is wanted."""


class SpeechModel(msgspec.Struct, frozen=True):
    """What turns audio into prompts for a model."""

    media: MediaService
    """Cuts and prepares the audio."""

    transcriber: Transcriber
    """Writes the prompts, and reads the answers."""


class Piece:
    """A piece of the audio and its transcription as it comes; times are seconds from the audio's beginning.

    ``total`` is the length of all audio. The piece's prompt has ``tokens``, and the encoder adds ``audio_tokens``.
    ``silence`` is the probability that nothing is said, known at the end if it was asked for.
    """

    def __init__(self, index: int, audio: AudioChunk, language: str) -> None:
        self.index = index
        self.start, self.stop, self.total = audio.start, audio.stop, audio.total
        self.language = language
        self.audio_tokens = audio.item.processed.count
        self.tokens = 0
        self.silence: float | None = None
        self._arrived: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()

    def put(self, chunk: Chunk | Exception | None) -> None:
        """More of the answer, the error it failed with, or None at its end."""
        self._arrived.put_nowait(chunk)

    async def chunks(self) -> AsyncIterator[Chunk]:
        """The answer as it comes; raises the error it failed with."""
        while (chunk := await self._arrived.get()) is not None:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk


class TranscriptionRunner:
    """Runs the pieces of one audio file through the engine."""

    def __init__(
        self, job: TranscriptionJob, body: SpeechRequest, served: Served, model: SpeechModel, exchange: Exchange
    ) -> None:
        self._job = job
        self._body = body
        self._served = served
        self._media = model.media
        self._transcriber = model.transcriber
        self._exchange = exchange
        self._running = asyncio.Semaphore(AT_ONCE)
        self._answers: set[asyncio.Task[None]] = set()
        self._pieces: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[AsyncGenerator[tuple[Piece, Chunk], None]]:
        """The answers' chunks, piece by piece. Leaving early aborts what is running."""
        feeding = asyncio.create_task(self._feed())
        try:
            async with aclosing(self._in_order()) as chunks:
                yield chunks
        finally:
            tasks = [feeding, *self._answers]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _in_order(self) -> AsyncGenerator[tuple[Piece, Chunk], None]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            async for chunk in piece.chunks():
                self._exchange.count_tokens(len(chunk.ids))
                yield piece, chunk

    async def _feed(self) -> None:
        """Start every piece as soon as it is ready and fewer than ``AT_ONCE`` are running."""
        language = self._job.language
        try:
            file, seconds = Encoded(self._body.file), self._transcriber.seconds
            async with aclosing(self._media.split_audio(file, seconds, self._exchange.owner)) as chunks:
                index = 0
                async for audio in chunks:
                    if language is None:
                        language = await self._detect_language(audio.item)
                    await self._running.acquire()
                    piece = Piece(index, audio, language)
                    self._pieces.put_nowait(piece)
                    self._answers.add(asyncio.create_task(self._answer(piece, audio.item)))
                    index += 1
            self._pieces.put_nowait(None)
        except BadRequest as error:
            self._pieces.put_nowait(BadRequest(f"file: {error.message}", param="file"))
        except Exception as error:
            self._pieces.put_nowait(error)

    async def _answer(self, piece: Piece, item: Prepared) -> None:
        """Transcribe one piece."""
        job = self._job
        try:
            prompt = self._transcriber.prompt(job.task, piece.language, timed=job.timed, before=job.before)
            piece.tokens = len(prompt)
            async with self._run(f"{job.id}-{piece.index}", prompt, job.params, item) as chunks:
                async for chunk in chunks:
                    if chunk.finish is not None and job.scored:
                        piece.silence = await self._score_silence(piece, item)
                    piece.put(chunk)
            piece.put(None)
        except Exception as error:
            piece.put(error)
        finally:
            self._running.release()

    async def _detect_language(self, item: Prepared) -> str:
        """Detect the language: the code of the likeliest one."""
        prompt, codes = self._transcriber.ask_language()
        params = _ONE_TOKEN.replace(allowed_token_ids=tuple(codes))
        chunk = await self._one_token(f"{self._job.id}-language", prompt, params, item)
        return codes[chunk.ids[0]]

    async def _score_silence(self, piece: Piece, item: Prepared) -> float | None:
        """The probability that nothing is said; None where the model can't tell."""
        found = self._transcriber.ask_silence()
        if found is None:
            return None
        prompt, token = found
        params = _ONE_TOKEN.replace(allowed_token_ids=(token,), logprobs=0)
        chunk = await self._one_token(f"{self._job.id}-{piece.index}-silence", prompt, params, item)
        return math.exp(chunk.logprobs[0][0].logprob) if chunk.logprobs else None

    async def _one_token(self, id: str, prompt: tuple[int, ...], params: SamplingParams, item: Prepared) -> Chunk:
        async with self._run(id, prompt, params, item) as chunks:
            (found,) = [chunk async for chunk in chunks if chunk.ids]
            return found

    def _run(
        self, id: str, prompt: tuple[int, ...], params: SamplingParams, item: Prepared
    ) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        request = make_request(self._body, [self._media.place(prompt, [item])], params, id, self._exchange)
        return run(request, self._served, self._exchange)
