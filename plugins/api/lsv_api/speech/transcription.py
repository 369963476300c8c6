"""What is said in a sound: its pieces go through the engine side by side, and their answers keep the sound's order."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec

from lsv.errors import BadRequest
from lsv.media.items import AudioChunk, Encoded, Prepared
from lsv.media.service import MediaService
from lsv.media.transcriber import Task, Transcriber
from lsv.request.outputs import Chunk
from lsv.request.params import SamplingParams
from lsv_api.http.context import Exchange, Served
from lsv_api.openai.answers import Job, begin
from lsv_api.openai.prompts import EncodedPrompt
from lsv_api.records.requests import SpeechRequest

AT_ONCE = 16
"""Pieces of one sound that the engine has at a time: a long one must not fill the queue."""

_ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)


class Hearing(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked about a sound. Without a ``language`` it is found out. ``before`` are tokens of text said earlier;
    ``timed`` asks for time marks, ``doubted`` how likely it is that nothing is said.
    """

    id: str
    task: Task
    language: str | None
    before: tuple[int, ...]
    params: SamplingParams
    timed: bool
    doubted: bool = False


class Ears(msgspec.Struct, frozen=True):
    """What makes a model's prompts of sounds."""

    media: MediaService
    transcriber: Transcriber


class Piece:
    """A part of the sound, in seconds from its beginning, of ``total``; and the news of what is said in it.

    ``silence`` is the probability that nothing is, known at the end if it was asked for. Its prompt has ``tokens``, and
    the encoder makes ``heard`` more of it.
    """

    def __init__(self, index: int, audio: AudioChunk, language: str) -> None:
        self.index = index
        self.start, self.stop, self.total = audio.start, audio.stop, audio.total
        self.language = language
        self.heard = audio.item.processed.count
        self.tokens = 0
        self.silence: float | None = None
        self._news: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()

    def tell(self, news: Chunk | Exception | None) -> None:
        """More of the answer, why there is none, or None at its end."""
        self._news.put_nowait(news)

    async def chunks(self) -> AsyncIterator[Chunk]:
        """The answer as it comes; raises why it does not."""
        while (news := await self._news.get()) is not None:
            if isinstance(news, Exception):
                raise news
            yield news


class Listener:
    """Listens to one sound."""

    def __init__(self, hearing: Hearing, body: SpeechRequest, served: Served, ears: Ears, exchange: Exchange) -> None:
        self._hearing = hearing
        self._body = body
        self._served = served
        self._media = ears.media
        self._transcriber = ears.transcriber
        self._exchange = exchange
        self._room = asyncio.Semaphore(AT_ONCE)
        self._answers: set[asyncio.Task[None]] = set()
        self._pieces: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[AsyncGenerator[tuple[Piece, Chunk], None]]:
        """The answers' chunks, piece by piece. Leaving early aborts what is under way."""
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
        """Begin with every piece as soon as it is ready and there is room."""
        language = self._hearing.language
        try:
            async with aclosing(self._media.split_audio(Encoded(self._body.file), self._transcriber.seconds)) as chunks:
                index = 0
                async for audio in chunks:
                    if language is None:
                        language = await self._find_language(audio.item)
                    await self._room.acquire()
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
        """Tell the piece what is said in it."""
        hearing = self._hearing
        try:
            prompt = self._transcriber.prompt(hearing.task, piece.language, timed=hearing.timed, before=hearing.before)
            piece.tokens = len(prompt)
            self._exchange.prompt_tokens += len(prompt)
            async with aclosing(self._run(f"{hearing.id}-{piece.index}", prompt, hearing.params, item)) as chunks:
                async for chunk in chunks:
                    if chunk.finish is not None and hearing.doubted:
                        piece.silence = await self._find_silence(piece, item)
                    piece.tell(chunk)
            piece.tell(None)
        except Exception as error:
            piece.tell(error)
        finally:
            self._room.release()

    async def _find_language(self, item: Prepared) -> str:
        """The code of the likeliest language."""
        prompt, codes = self._transcriber.ask_language()
        params = _ONE_TOKEN.replace(allowed_token_ids=tuple(codes))
        chunk = await self._one_token(f"{self._hearing.id}-language", prompt, params, item)
        return codes[chunk.ids[0]]

    async def _find_silence(self, piece: Piece, item: Prepared) -> float | None:
        asked = self._transcriber.ask_silence()
        if asked is None:
            return None
        params = _ONE_TOKEN.replace(allowed_token_ids=(asked[1],), logprobs=0)
        chunk = await self._one_token(f"{self._hearing.id}-{piece.index}-silence", asked[0], params, item)
        return math.exp(chunk.logprobs[0][0].logprob) if chunk.logprobs else None

    async def _one_token(self, id: str, prompt: tuple[int, ...], params: SamplingParams, item: Prepared) -> Chunk:
        async with aclosing(self._run(id, prompt, params, item)) as chunks:
            (found,) = [chunk async for chunk in chunks if chunk.ids]
            return found

    def _run(
        self, id: str, prompt: tuple[int, ...], params: SamplingParams, item: Prepared
    ) -> AsyncGenerator[Chunk, None]:
        placed = self._media.place(prompt, [item])
        job = Job(id, EncodedPrompt(placed.ids, None, placed.media, placed.positions), params)
        return begin(job, self._body, self._served, self._exchange)
