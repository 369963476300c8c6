"""A running request as its client sees it: the engine's updates in, chunks of text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lsv.engine.messages import Finish, Start, Submit, Update
from lsv.request.outputs import Chunk, Gaps, PositionLogprobs, RequestRecord, Timings, TokenLogprob
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.request.spec import RequestSpec
from lsv.scheduler.plan import Logprobs
from lsv.text.detokenize import make_detokenizer
from lsv.text.stops import StopFinder, Stopped, StopStrings
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import RequestFailed, from_record

REPEATED = "repetition_detected"
"""What stopped an answer that only repeated itself."""


class Candidate:
    """One candidate's way from token ids to text, up to its stop string.

    ``finish`` is None while it grows; ``stop`` is the stop string or token id that ended it.
    """

    def __init__(
        self, prompt: Sequence[int], params: SamplingParams, tokenizer: Tokenizer, stops: StopStrings | None
    ) -> None:
        self.tokens = 0
        self.finish: FinishReason | None = None
        self.stop: int | str | None = None
        self._params = params
        self._detokenizer = make_detokenizer(tokenizer, prompt, params) if params.detokenize else None
        self._finder = StopFinder(stops, include=params.include_stop_str_in_output) if stops else None

    @property
    def finished(self) -> bool:
        return self.finish is not None

    def take(self, update: Update) -> tuple[str, int]:
        """The new text, and how many of the update's tokens belong to the answer (a stop string may cut it)."""
        shown = ""
        tokens = update.tokens
        hidden = update.finish is not None and self._is_hidden(update)
        for count, token in enumerate(tokens, start=1):
            self.tokens += 1
            if self._detokenizer is None or (hidden and count == len(tokens)):
                continue
            text = self._detokenizer.push(token)
            shown += text if self._finder is None else self._show(text)
            if self.finish is not None:
                return shown, count
        if update.finish is not None:
            shown += self._end(update.finish, update.stop)
        return shown, len(tokens)

    def _is_hidden(self, update: Update) -> bool:
        """Whether the last token ended the answer, as an eos or a stop token does, and is not part of the text."""
        if update.finish is not FinishReason.STOP or update.complete:
            return False
        return not self._params.include_stop_str_in_output

    def _show(self, text: str) -> str:
        """The part of new text that can't begin a stop string; at one, the answer is finished.

        A stop string that is complete within ``min_tokens`` does not count; one that only begins there does.
        """
        if self._finder is None:
            return text
        found = self._finder.push(text, early=self.tokens <= self._params.min_tokens)
        if isinstance(found, Stopped):
            self.finish, self.stop = FinishReason.STOP, found.stop
            return found.text
        return found

    def _end(self, finish: FinishReason, stop: int | None) -> str:
        """Release the text that was held back; a stop string in it is how the answer ended."""
        text = self._show(self._detokenizer.flush()) if self._detokenizer else ""
        if not self.finished:
            self.finish, self.stop = finish, REPEATED if finish is FinishReason.REPETITION else stop
            text += self._finder.flush() if self._finder else ""
        return text


class OutputStream:
    """The output of one request, all its sequences together. Times are those of the caller's clock, in seconds.

    ``request`` is what was admitted, ``submit`` the message it was sent as.
    """

    def __init__(self, request: RequestSpec, submit: Submit, *, model: str, tokenizer: Tokenizer, now: float) -> None:
        assert request.sampling is not None, "a pooling request has no answers"
        self.request = request
        self.request_id = request.request_id
        self.submit = submit
        self._model = model
        self._candidates = request.candidates
        stops = StopStrings(request.sampling.stop) if request.sampling.stop else None
        self._prompts = [
            _PromptOutput(number, prompt.ids, request.sampling, tokenizer, stops, now)
            for number, prompt in enumerate(request.prompts)
        ]
        self._open = request.size
        self._failed = False

    @property
    def finished(self) -> bool:
        return not self._open

    def take(self, update: Update, now: float) -> tuple[Chunk | None, Finish | None]:
        """What is new for the reader, and what the engine must be told: that a stop string has ended an answer.

        Raises the error of a sequence that failed; the request is over then.
        """
        number, index = divmod(update.index, self._candidates)
        output = self._prompts[number]
        candidate = output.candidates[index]
        if candidate.finished:
            return None, None
        if update.finish is FinishReason.ERROR:
            self._failed = True
            candidate.finish = update.finish
            raise from_record(update.error) if update.error else RequestFailed("the request failed in the engine")
        chunk = output.take(index, update, now)
        if chunk is None or chunk.finish is None:
            return chunk, None
        self._open -= 1
        return chunk, None if update.finish is not None else Finish(update.id, update.index, candidate.tokens)

    def fail(self) -> None:
        """The request ended with an error of the engine."""
        self._failed = True

    def take_timings(self) -> Iterator[Timings]:
        """What has happened of each answer since the last call."""
        for output in self._prompts:
            if (timings := output.take_timings()) is not None:
                yield timings

    def records(self, now: float) -> list[RequestRecord]:
        """How the request went, whether it finished or was aborted: a record for each of its prompts."""
        return [output.record(self.request_id, self._model, now, failed=self._failed) for output in self._prompts]


class _PromptOutput:
    """The answers to one of a request's prompts."""

    def __init__(
        self,
        number: int,
        prompt: Sequence[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        stops: StopStrings | None,
        now: float,
    ) -> None:
        self.candidates = [Candidate(prompt, params, tokenizer, stops) for _ in range(params.candidates)]
        self._number = number
        self._prompt = prompt
        self._params = params
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[PositionLogprobs | None] = [None]
        self._opened = False
        self._began = now
        self._first: float | None = None
        self._last: dict[int, float] = {}
        self._gaps = Gaps()
        self._told_first, self._told_gaps = False, Gaps()
        self._start = Start()
        self._preemptions = 0
        self._rejected = [0] * params.candidates

    def take(self, index: int, update: Update, now: float) -> Chunk | None:
        """What is new about candidate ``index``."""
        self._measure(index, update, now)
        text, kept = self.candidates[index].take(update)
        return self._chunk(index, update, text, kept)

    def take_timings(self) -> Timings | None:
        """What has happened since the last call; None if nothing has."""
        told = self._told_first, self._told_gaps
        if self._first is None or (told[0] and self._gaps.counts == told[1].counts):
            return None
        self._told_first, self._told_gaps = True, Gaps(self._gaps.counts.copy(), self._gaps.total)
        return Timings(None if told[0] else self._first - self._began, self._gaps.without(told[1]))

    def record(self, request_id: str, model: str, now: float, *, failed: bool) -> RequestRecord:
        """How it went."""
        counts = [candidate.tokens for candidate in self.candidates]
        return RequestRecord(
            request_id=request_id,
            model=model,
            prompt_tokens=len(self._prompt),
            tokens=sum(counts),
            cached_tokens=self._start.cached,
            finish=FinishReason.ERROR if failed else self._reason(),
            n=self._params.n,
            best_of=self._params.beam_width,
            max_tokens=self._params.max_tokens or 0,
            queued=self._start.queued,
            prefill=self._start.prefill,
            ttft=None if self._first is None else self._first - self._began,
            e2e=now - self._began,
            itl=self._gaps,
            longest=max(counts),
            preemptions=self._preemptions,
            fresh=self.take_timings() or Timings(),
        )

    def _reason(self) -> FinishReason:
        """The first candidate's finish reason stands for all; unless all have finished, the request was aborted."""
        first = self.candidates[0].finish
        return FinishReason.ABORT if first is None or not all(one.finished for one in self.candidates) else first

    def _measure(self, index: int, update: Update, now: float) -> None:
        if index == 0 and update.start is not None:
            self._start = update.start
        self._preemptions += update.preemptions
        if not update.tokens:
            return
        before = self._last.get(index)
        if before is not None:
            self._gaps.add(now - before, len(update.tokens))
        self._last[index] = now
        if self._first is None:
            self._first = now

    def _chunk(self, index: int, update: Update, text: str, kept: int) -> Chunk | None:
        candidate = self.candidates[index]
        if index == 0 and update.prompt_logprobs is not None:
            self._prompt_logprobs += self._positions(update.prompt_logprobs)
        computed = self._count(index, update)
        if not update.tokens and not candidate.finished:
            return Chunk(prompt=self._number, index=index, computed=computed) if computed else None
        logprobs = None
        if update.logprobs is not None and self._params.logprobs is not None:
            logprobs = self._positions(update.logprobs)[:kept]
        opens = index == 0 and not self._opened
        self._opened = self._opened or opens
        scored = opens and self._params.prompt_logprobs is not None
        return Chunk(
            prompt=self._number,
            index=index,
            text=text,
            ids=update.tokens[:kept],
            logprobs=logprobs,
            prompt_logprobs=tuple(self._prompt_logprobs) if scored else None,
            cached=self._start.cached if opens else None,
            drafted=update.drafted,
            computed=computed,
            finish=candidate.finish,
            stop=candidate.stop,
        )

    def _count(self, index: int, update: Update) -> int:
        """Tokens computed for the request since the last update, without its prompt's."""
        if self._params.use_beam_search:
            return update.computed
        verified, accepted = update.drafted or (0, 0)
        rejected, self._rejected[index] = verified - accepted - self._rejected[index], verified - accepted
        return len(update.tokens) + update.computed + rejected

    def _positions(self, logprobs: Logprobs) -> tuple[PositionLogprobs, ...]:
        spell = self._tokenizer.token_text
        return tuple(
            tuple(map(TokenLogprob, ids, map(spell, ids), values, ranks))
            for ids, values, ranks in zip(logprobs.ids, logprobs.values, logprobs.ranks, strict=True)
        )
