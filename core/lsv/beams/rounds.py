"""Beam searches as the engine runs them: each round is a request group of one token for every beam.

A fork is a sequence that begins with the tokens of its beam: it finds their full blocks in the prefix cache and
computes the rest anew, as after a preemption. So whatever holds for requests (chunked prefill, preemption, steps in
flight, fairness, deadlines) holds for beams, and neither scheduler nor worker knows of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec

from lsv.beams.search import Beam, BeamSearch, likeliest_of
from lsv.beams.watch import StopWatch
from lsv.config import Fit
from lsv.engine.parts.part import Host, Part, PartContext
from lsv.request.group import RequestGroup
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason, Request
from lsv.request.spec import RequestSpec
from lsv.scheduler.outcome import Outcome
from lsv.scheduler.plan import Logprobs, join_logprobs
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import BadRequest


class Round(RequestGroup):
    """One more token for each beam of a request: sequence ``i`` extends ``beams[i]``."""

    rounds = True

    def __init__(self, asked: RequestGroup, spec: RequestSpec, beams: Sequence[Beam], begun: Sequence[Request]) -> None:
        super().__init__(asked.id, spec, arrival=asked.arrival, adapter=asked.adapter)
        self._beams = beams
        self._begun = begun

    def make(self, index: int) -> Request:
        request = super().make(index)
        request.output += self._beams[index].tokens
        if self._begun:
            _go_on(request, self._begun[index])
        return request


def _go_on(request: Request, begun: Request) -> None:
    """What counts once for all sequences of a prompt was counted with the first of them."""
    request.first_planned, request.first_token = begun.first_planned, begun.first_token
    request.cached = begun.cached


class _Prompt:
    """The search for one of the request's prompts."""

    def __init__(self, number: int, search: BeamSearch) -> None:
        self.number = number
        self.search = search
        self.first: Request | None = None
        """The sequence of its first round."""
        self.scores: list[Logprobs] = []
        """The prompt's own log probabilities, as they come."""
        self.preemptions = 0
        self.told = False
        """Whether its answers have been given out."""


class Advance(msgspec.Struct, frozen=True):
    """What a round came to."""

    answers: tuple[Outcome, ...]
    """The whole answers of prompts that are done, or how those of the request ended that failed."""
    round: Round | None
    """What to compute next; None when nothing is left to compute."""
    computed: int = 0
    """Tokens that the round computed: one for each beam, plus tokens of blocks that were not cached."""


class _Group:
    """A request under way: a search for each of its prompts, which go on in step."""

    def __init__(self, asked: RequestGroup, prompts: list[_Prompt], likeliest: int) -> None:
        self.asked = asked
        self._params = _params(asked)
        self._prompts = prompts
        self._likeliest = likeliest
        self._length = 0
        self._rows: dict[int, Logprobs] = {}
        self._computed = 0
        self._running: list[_Prompt] = []
        """The prompt of each sequence of the round."""

    def next_round(self) -> Round | None:
        """What to compute next."""
        searching = [prompt for prompt in self._prompts if not prompt.search.done]
        if not searching:
            return None
        self._rows.clear()
        self._computed = 0
        self._running = [prompt for prompt in searching for _ in prompt.search.beams]
        self._length += 1
        beams = [beam for prompt in searching for beam in prompt.search.beams]
        begun = [prompt.first for prompt in self._running if prompt.first is not None]
        spec = msgspec.structs.replace(
            self.asked.spec,
            prompts=tuple(self.asked.spec.prompts[prompt.number] for prompt in self._running),
            sampling=SamplingParams(
                temperature=0.0,
                max_tokens=self._length,
                logprobs=self._likeliest,
                prompt_logprobs=self._params.prompt_logprobs if self._length == 1 else None,
                detokenize=False,
            ),
        )
        return Round(self.asked, spec, beams, begun)

    def take(self, outcome: Outcome) -> Advance | None:
        """News of a sequence of the round; None while others are computed."""
        request = outcome.request
        prompt = self._running[request.index]
        if outcome.finish in (FinishReason.ERROR, FinishReason.ABORT):
            return Advance(self._unanswered(outcome), None, self._computed)
        prompt.first = prompt.first or request
        if outcome.prompt_logprobs is not None:
            prompt.scores.append(outcome.prompt_logprobs)
        if outcome.finish is None:
            return None
        assert outcome.logprobs is not None, "a beam has no candidates"
        prompt.preemptions += request.preemptions
        self._rows[request.index] = outcome.logprobs
        self._computed += 1 + request.repeated
        return self._advance() if len(self._rows) == len(self._running) else None

    def _advance(self) -> Advance:
        searching, computed = list(dict.fromkeys(self._running)), self._computed
        rows: dict[_Prompt, list[Logprobs]] = {prompt: [] for prompt in searching}
        for index, prompt in enumerate(self._running):
            rows[prompt].append(self._rows[index])
        for prompt in searching:
            prompt.search.advance(rows[prompt])
        done = [prompt for prompt in searching if prompt.search.done]
        answers = tuple(answer for prompt in done for answer in self._answers(prompt))
        return Advance(answers, self.next_round(), computed)

    def _answers(self, prompt: _Prompt) -> list[Outcome]:
        prompt.told = True
        best = prompt.search.answers[: self._params.n]
        return [self._answer(prompt, rank, beam) for rank, beam in enumerate(best)]

    def _answer(self, prompt: _Prompt, rank: int, beam: Beam) -> Outcome:
        """A whole answer as if it had come in one step."""
        request = self._request(prompt, rank)
        request.output += beam.tokens
        ended = beam.finish is FinishReason.STOP and beam.tokens[-1] in self._params.stop_token_ids
        return Outcome(
            request,
            beam.tokens,
            join_logprobs(beam.positions),
            join_logprobs(prompt.scores) if rank == 0 else None,
            finish=beam.finish,
            stop=beam.tokens[-1] if ended else None,
            complete=beam.stopped,
        )

    def _unanswered(self, failed: Outcome) -> tuple[Outcome, ...]:
        """Every answer that has not been given out ends as one of the sequences did."""
        left = (prompt for prompt in self._prompts if not prompt.told)
        return tuple(
            Outcome(self._request(prompt, rank), finish=failed.finish, error=failed.error)
            for prompt in left
            for rank in range(self._params.n)
        )

    def _request(self, prompt: _Prompt, rank: int) -> Request:
        """An answer's sequence, as the client counts them."""
        spec = self.asked.spec
        index = prompt.number * self._params.n + rank
        request = Request(self.asked.id + index, spec, index=index, arrival=self.asked.arrival)
        request.preemptions = prompt.preemptions if rank == 0 else 0
        if prompt.first is not None:
            _go_on(request, prompt.first)
        return request


def make_beams(context: PartContext) -> BeamSearches:
    """The part of an engine that searches."""
    return BeamSearches(context.engine)


class BeamSearches(Part):
    """The requests under way that are answered by beam search, by the ids of their groups."""

    name = "beams"

    def __init__(self, engine: Host) -> None:
        self._config, self._engine = engine.config, engine
        self._groups: dict[int, _Group] = {}
        self._vocab_size = self._longest = 0

    def start(self, fit: Fit) -> None:
        self._vocab_size, self._longest = fit.vocab_size, fit.max_model_len

    def replace(self, group: RequestGroup) -> RequestGroup:
        """A search's first round, which waits for what the search waits for. Raises ``BadRequest``."""
        return self._begin(group) if group.spec.searched else group

    def _begin(self, asked: RequestGroup) -> Round:
        stop_ids = asked.stop_ids
        if not (self._config.mixed_batches or self._config.chunked_prefill):
            raise BadRequest(
                "use_beam_search: this engine computes whole prompts apart from answers, and a search would keep all "
                "other answers waiting: enable chunked prefill",
                param="use_beam_search",
            )
        params, prompts = _params(asked), []
        for number, prompt in enumerate(asked.spec.prompts):
            left = self._longest - len(prompt.ids)
            most = min(params.max_tokens or left, left)
            watch = StopWatch(params, prompt.ids, self._tokenizer) if params.stop else None
            prompts.append(_Prompt(number, BeamSearch(params, stop_ids, most, watch)))
        group = _Group(asked, prompts, min(self._vocab_size, likeliest_of(params, stop_ids)))
        first = group.next_round()
        assert first is not None, "a search needs no round"
        first.needs |= asked.needs
        self._groups[asked.id] = group
        return first

    def follows(self, group: RequestGroup) -> bool:
        return group.spec.searched

    def follow(self, outcome: Outcome) -> tuple[Outcome, ...]:
        """Answers that have been found; queues the next round once all of the last one is known."""
        group = outcome.request.group
        advance = self._groups[group].take(outcome)
        if advance is None:
            return ()
        self._engine.note_computed(group, advance.computed)
        if advance.round is None:
            self._engine.scheduler.abort([group])
        else:
            self._engine.scheduler.renew(advance.round)
        return advance.answers

    def close(self, group: int) -> None:
        self._groups.pop(group, None)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        """Loaded for the first request with stop strings."""
        return Tokenizer.of(self._config)


def _params(asked: RequestGroup) -> SamplingParams:
    assert asked.spec.sampling is not None, "a pooling request has no beams"
    return asked.spec.sampling
