"""The answers to a request, gathered from its chunks: one way for offline outputs and for HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from lsv.request.outputs import Chunk, CompletionOutput, PositionLogprobs, by_token
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason


class Answer:
    """Candidate ``number``'s answer as far as its chunks have come; ``finish`` is None while it grows."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.ids: list[int] = []
        self.logprobs: list[PositionLogprobs] = []
        self.finish: FinishReason | None = None
        self.stop: int | str | None = None
        self._text: list[str] = []

    def add(self, chunk: Chunk) -> None:
        self._text.append(chunk.text)
        self.ids += chunk.ids
        self.logprobs += chunk.logprobs or ()
        if chunk.finish is not None:
            self.finish, self.stop = chunk.finish, chunk.stop

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def cumulative_logprob(self) -> float:
        """Sum of the chosen tokens' log probabilities, where they were asked for."""
        return sum(position[0].logprob for position in self.logprobs)

    @property
    def mean_logprob(self) -> float:
        """Their mean: what candidates are ranked by, so that a long answer is not worse for its length."""
        return self.cumulative_logprob / max(1, len(self.logprobs))

    def output(self, index: int, *, show_logprobs: bool) -> CompletionOutput:
        """The answer as offline users get it, as number ``index`` of its request."""
        return CompletionOutput(
            index=index,
            text=self.text,
            token_ids=tuple(self.ids),
            cumulative_logprob=self.cumulative_logprob if self.logprobs else None,
            logprobs=[by_token(position) for position in self.logprobs] if show_logprobs else None,
            finish_reason=self.finish,
            stop_reason=self.stop,
        )


class Answers:
    """All candidates' answers to one request, and what its chunks say about its prompt."""

    def __init__(self, params: SamplingParams) -> None:
        self.prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
        self.cached = 0
        """Prompt tokens found in the prefix cache."""
        self._n = params.n
        self._answers = [Answer(number) for number in range(params.candidates)]

    @property
    def finished(self) -> bool:
        return all(answer.finish is not None for answer in self._answers)

    def add(self, chunk: Chunk) -> None:
        self._answers[chunk.index].add(chunk)
        if chunk.cached is not None:
            self.cached = chunk.cached
        if chunk.prompt_logprobs is not None:
            self.prompt_logprobs = chunk.prompt_logprobs

    def fail(self) -> None:
        """The request failed: answers that have not ended end here."""
        self._end(FinishReason.ERROR)

    def abort(self) -> None:
        """The request was aborted: answers that have not ended end here."""
        self._end(FinishReason.ABORT)

    def _end(self, reason: FinishReason) -> None:
        for answer in self._answers:
            answer.finish = answer.finish or reason

    def best(self) -> Sequence[Answer]:
        """The ``n`` answers of the request."""
        return rank(self._answers, self._n)


def rank(answers: Sequence[Answer], n: int) -> Sequence[Answer]:
    """The ``n`` likeliest answers, best first; the order they came in where none has to be left out."""
    if len(answers) == n:
        return answers
    return sorted(answers, key=lambda answer: answer.mean_logprob, reverse=True)[:n]
