"""Gathers the chunks of a request into the output that offline users get."""

from __future__ import annotations

from collections.abc import Sequence

from lsv.request.outputs import Chunk, CompletionOutput, PositionLogprobs, RequestOutput
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason


class Candidate:
    """One answer as far as it has come."""

    def __init__(self) -> None:
        self.finish: FinishReason | None = None
        self._stop: int | str | None = None
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []

    @property
    def cumulative_logprob(self) -> float:
        """Sum of the chosen tokens' log probabilities, as far as they were asked for."""
        return sum(position[0].logprob for position in self._logprobs)

    def add(self, chunk: Chunk) -> None:
        self._text.append(chunk.text)
        self._ids += chunk.ids
        self._logprobs += chunk.logprobs or ()
        self.finish, self._stop = chunk.finish, chunk.stop

    def output(self, index: int, *, show_logprobs: bool) -> CompletionOutput:
        return CompletionOutput(
            index=index,
            text="".join(self._text),
            token_ids=tuple(self._ids),
            cumulative_logprob=self.cumulative_logprob if self._logprobs else None,
            logprobs=tuple(self._logprobs) if show_logprobs else None,
            finish_reason=self.finish,
            stop_reason=self._stop,
        )


class Collector:
    """All candidates of one request; of ``best_of`` finished ones the ``n`` most likely are its outputs."""

    def __init__(self, request_id: str, prompt: str | None, ids: Sequence[int], params: SamplingParams) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._ids = tuple(ids)
        self._params = params
        self._candidates = [Candidate() for _ in range(params.candidates)]
        self._prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
        self._cached = 0

    @property
    def finished(self) -> bool:
        return all(candidate.finish is not None for candidate in self._candidates)

    def add(self, chunk: Chunk) -> None:
        self._candidates[chunk.index].add(chunk)
        self._cached = self._cached if chunk.cached is None else chunk.cached
        if chunk.prompt_logprobs is not None:
            self._prompt_logprobs = chunk.prompt_logprobs

    def output(self) -> RequestOutput:
        show = self._params.logprobs is not None
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=self._ids,
            outputs=[candidate.output(i, show_logprobs=show) for i, candidate in enumerate(self._best())],
            finished=self.finished,
            prompt_logprobs=self._prompt_logprobs,
            num_cached_tokens=self._cached,
        )

    def _best(self) -> list[Candidate]:
        if self._params.candidates == self._params.n:
            return self._candidates
        ranked = sorted(self._candidates, key=lambda candidate: candidate.cumulative_logprob, reverse=True)
        return ranked[: self._params.n]
