"""A client without an engine: deterministic answers over a byte-level vocabulary, for tests of frontends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from lsv.config import EngineConfig, Fit
from lsv.engine.client import EngineStatus, Vector
from lsv.engine.client_base import ClientBase
from lsv.engine.messages import Stats
from lsv.engine.orders.adapters import LoadAdapter, UnloadAdapter
from lsv.engine.orders.order import Order
from lsv.engine.orders.sleep import Sleep, WakeUp
from lsv.request.adapter import Adapter
from lsv.request.outputs import Chunk, Gaps, PositionLogprobs, RequestRecord, Timings, TokenLogprob
from lsv.request.params import SamplingParams, Side
from lsv.request.prompt import Prompt
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv.text.frame import Frame
from lsv_base.errors import BadRequest

if TYPE_CHECKING:
    from lsv.media.service import MediaService
    from lsv.text.tokenizer import Tokenizer

BOS, EOS = 256, 257
VOCAB = 260


class FakeTokenizer:
    """One token a byte, and a chat template that writes ``<role>text`` for each message."""

    vocab_size = VOCAB
    longest = 1
    sampling_defaults: ClassVar[Mapping[str, float]] = {}
    eos_ids = (EOS,)
    frame = Frame((BOS,), bos=BOS)
    special_ids = frozenset(range(BOS, VOCAB))
    has_chat_template = True
    special_tokens: ClassVar[Mapping[str, str]] = {}
    special_texts: ClassVar[frozenset[str]] = frozenset()
    template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"

    def has_template(self, name: str) -> bool:
        return False

    def check_template(self, template: str) -> None:
        pass

    def template_source(self, template: str | None, *, with_tools: bool = False) -> str:
        return template or self.template

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*([BOS] if add_special_tokens else ()), *text.encode()]

    def encode_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], keep: int | None = None, side: Side = "right"
    ) -> list[tuple[list[int], int]]:
        """The first text, a separator, the second."""
        found = []
        for index, second in enumerate(seconds):
            first = firsts[index if len(firsts) > 1 else 0]
            ids = [*first.encode(), EOS, *second.encode()]
            found.append((ids[:keep] if keep is None or side == "right" else ids[-keep:], len(first.encode()) + 1))
        return found

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        shown = (self.token_bytes(token) for token in ids if token < BOS or not skip_special_tokens)
        return b"".join(shown).decode(errors="replace")

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < BOS else f"<|{token}|>".encode()

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        content_format: str = "auto",
        continue_final_message: bool = False,
    ) -> str:
        for message in messages:
            if message["role"] == "untemplated":
                raise BadRequest("the chat template refused the messages: unknown role", param="messages")
        told = [f"<{name}:{value}>" for name, value in (kwargs or {}).items()]
        told += [f"<tool>{tool['function']['name']}" for tool in tools or ()]
        read = [f"<doc>{document.get('text', '')}" for document in documents or ()]
        said = [f"<{message['role']}>{_text_of(message['content'])}" for message in messages]
        asked = ["<assistant>"] if add_generation_prompt else []
        return "\n".join([*([template] if template else ()), *told, *read, *said, *asked])


def _text_of(content: Any) -> str:
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else str(content or "")


def fake_config(name: str = "fake", **changes: Any) -> EngineConfig:
    known: dict[str, Any] = {
        "model": "/models/fake",
        "served_names": (name,),
        "tokenizer": "/models/fake",
        "architecture": "Fake",
        "model_offer": "fake",
        "platform": "fake",
        "attention": "fake",
        "dtype": "float32",
        "block_size": 16,
        "max_model_len": 512,
    }
    return EngineConfig(**(known | changes))


class FakeClient(ClientBase):
    """Answers every prompt with ``answer``, a byte a token; remembers what it admitted, aborted and finished.

    ``pace`` seconds pass before each token; nothing is generated while ``gate`` is closed. ``failure`` is
    raised after ``fail_after`` tokens. ``answers`` gives candidates their own texts. ``generated`` counts tokens.
    """

    def __init__(self, config: EngineConfig | None = None, *, answer: str = "Hello, world.") -> None:
        config = config or fake_config()
        fit = Fit(
            num_blocks=64,
            block_size=config.block_size,
            kv_bytes=0,
            weight_bytes=0,
            max_model_len=config.max_model_len,
            vocab_size=VOCAB,
        )
        super().__init__(config, cast("Tokenizer", FakeTokenizer()), fit=fit)
        self.status = EngineStatus(state="ready")
        self.stats = Stats()
        self.media: MediaService | None = None
        self.answer = answer
        self.answers: Mapping[int, str] = {}
        self.pace = 0.0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None
        self.fail_after = 0
        self.generated = 0
        self.requests: list[RequestSpec] = []
        self.aborted: list[str] = []
        self.finished: list[RequestRecord] = []
        self.orders: list[Order] = []

    async def generate(self, request: RequestSpec) -> AsyncGenerator[Chunk, None]:
        request = self.admission.admit(request)
        self.requests.append(request)
        started, sent, reason = time.monotonic(), Counter[int](), FinishReason.ABORT
        try:
            if self.failure is not None and not self.fail_after:
                raise self.failure
            await self.gate.wait()
            for chunk in self._chunks(request):
                await asyncio.sleep(self.pace)
                if self.failure is not None and sent.total() >= self.fail_after:
                    raise self.failure
                sent[chunk.prompt] += len(chunk.ids)
                self.generated += len(chunk.ids)
                reason = chunk.finish or reason
                yield chunk
        except Exception:
            reason = FinishReason.ERROR
            raise
        finally:
            if reason is FinishReason.ABORT:
                self.aborted.append(request.request_id)
            for number, prompt in enumerate(request.prompts):
                self._finish(request, prompt, sent[number], reason, time.monotonic() - started)

    async def encode(self, request: RequestSpec) -> list[Vector]:
        admitted = self.admission.admit(request)
        self.requests.append(admitted)
        if self.failure is not None:
            raise self.failure
        vectors: list[Vector] = [(float(len(prompt.ids)), float(prompt.ids[-1]), 0.5) for prompt in admitted.prompts]
        if admitted.pooling is not None and admitted.pooling.kind == "all":
            return [(*vector,) * len(prompt.ids) for vector, prompt in zip(vectors, admitted.prompts, strict=True)]
        return vectors

    async def order(self, order: Order) -> None:
        """Remember an order, and change what clients see of it. No files of adapters are read.

        Raises ``BadRequest`` if the name of an adapter is taken.
        """
        self.orders.append(order)
        if isinstance(order, LoadAdapter):
            self._load(order)
        elif isinstance(order, UnloadAdapter):
            self.adapters = tuple(one for one in self.adapters if one.name != order.name)
        elif isinstance(order, Sleep):
            self.status = EngineStatus(state="sleeping", stage="weights, kv_cache")
        elif isinstance(order, WakeUp):
            self.status = EngineStatus(state="ready")

    def _load(self, order: LoadAdapter) -> None:
        name, path = order.name, order.path
        others = tuple(one for one in self.adapters if one.name != name)
        if len(others) < len(self.adapters) and not order.replace:
            raise BadRequest(f"the name {name} is taken: unload that adapter first", param="lora_name")
        self.adapters = (*others, Adapter(next(self._ids) + 1, name, path, path.encode()))

    async def close(self, *, drain: float = 0.0) -> None:
        self.status = EngineStatus(state="dead", error="closed")

    def _chunks(self, request: RequestSpec) -> Iterator[Chunk]:
        """All sequences' chunks, turn by turn; a prompt's own come with its first."""
        params = request.sampling
        assert params is not None
        tracks = [self._track(index, params) for index in range(params.candidates)]
        sequences = [(*divmod(index, len(tracks)), request.prompt_of(index)) for index in range(request.size)]
        for turn in range(max(map(len, tracks))):
            for number, index, prompt in sequences:
                track = tracks[index]
                if turn < len(track):
                    first = turn == 0 and index == 0
                    wanted = params.prompt_logprobs if first else None
                    scored = None if wanted is None else self._scored_prompt(prompt.ids, wanted)
                    yield Chunk(
                        prompt=number,
                        index=index,
                        prompt_logprobs=scored,
                        cached=16 if first else None,
                        computed=len(track[turn]["ids"]),
                        **track[turn],
                    )

    def _track(self, index: int, params: SamplingParams) -> list[dict[str, Any]]:
        """One candidate's chunks as fields, cut by stop strings and ``max_tokens``."""
        text, stop = self._stopped(self.answers.get(index, self.answer), params)
        whole = list(text.encode())
        shown = whole if params.max_tokens is None else whole[: params.max_tokens]
        complete = len(shown) == len(whole) and (params.max_tokens is None or len(whole) < params.max_tokens)
        ids = [*shown, EOS] if complete and stop is None else shown
        track: list[dict[str, Any]] = [
            {
                "text": self.tokenizer.token_text(token) if token < BOS else "",
                "ids": (token,),
                "logprobs": None if params.logprobs is None else (self._position(token, params.logprobs, index),),
            }
            for token in ids
        ]
        finish = FinishReason.STOP if complete or stop is not None else FinishReason.LENGTH
        track[-1] |= {"finish": finish, "stop": stop}
        return track

    @staticmethod
    def _stopped(text: str, params: SamplingParams) -> tuple[str, str | None]:
        found = [(text.find(stop), stop) for stop in params.stop if stop in text]
        if not found:
            return text, None
        at, stop = min(found)
        return text[: at + (len(stop) if params.include_stop_str_in_output else 0)] or " ", stop

    def _position(self, token: int, top: int, index: int) -> PositionLogprobs:
        """The chosen token has rank 1; candidates with a lower index are more sure of themselves."""
        best = [((token + step) % 256, step + 1) for step in range(top)]
        return tuple(
            TokenLogprob(found, self.tokenizer.token_text(found), -0.25 * (rank + index), rank)
            for found, rank in ((token, 1), *best)
        )

    def _scored_prompt(self, prompt: Sequence[int], top: int) -> tuple[PositionLogprobs | None, ...]:
        return (None, *(self._position(token, top, 0) for token in prompt[1:]))

    def _finish(self, request: RequestSpec, prompt: Prompt, tokens: int, reason: FinishReason, took: float) -> None:
        assert request.sampling is not None
        params = request.sampling
        gaps = Gaps()
        for _ in range(1, tokens):
            gaps.add(0.01)
        record = RequestRecord(
            request_id=request.request_id,
            model=self.config.served_names[0],
            prompt_tokens=len(prompt.ids),
            tokens=tokens,
            cached_tokens=16,
            finish=reason,
            n=params.n,
            best_of=params.candidates,
            max_tokens=params.max_tokens or 0,
            queued=0.001,
            prefill=0.002,
            ttft=0.004 if tokens else None,
            e2e=took,
            itl=gaps,
            longest=tokens // params.candidates,
            fresh=Timings(0.004 if tokens else None, gaps),
        )
        self.finished.append(record)
        self._report(request, record)
