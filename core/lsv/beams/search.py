"""The search for the likeliest answers to one prompt, token for token that of transformers' ``generate``.

Each round extends every beam by one token. Of all extensions the best ``width`` that have not ended are the beams of
the next round; those among the best ``width`` that have ended are answers, of which the best ``width`` are kept. An
answer's score is the sum of its tokens' log probabilities over its length to the power of ``length_penalty``; the
token that ended it counts, the prompt does not.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from lsv.beams.watch import StopWatch
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.scheduler.plan import Logprobs


class Beam(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A beginning of an answer, or a whole one."""

    tokens: tuple[int, ...] = ()
    """Its tokens, those of the prompt not among them."""
    logprob: float = 0.0
    """The sum of their log probabilities."""
    positions: tuple[Logprobs, ...] = ()
    """For each of them, the token and the likeliest ones that the request wants to see."""
    watch: StopWatch | None = None
    """Looks for stop strings in its text, where the request has any."""
    finish: FinishReason | None = None
    """How it ended; None for one that goes on."""
    stopped: bool = False
    """Whether that was a stop string."""
    score: float = 0.0
    """What answers are ranked by; of one that has ended."""


class Extension(msgspec.Struct, frozen=True, gc=False):
    """A beam and one more token, which is entry ``place`` of what the model makes of the beam."""

    logprob: float
    beam: Beam
    row: Logprobs
    place: int

    @property
    def token(self) -> int:
        return self.row.ids[0][self.place]


class BeamSearch:
    """One search. ``advance`` it by rounds until ``done``; then ``answers`` are what was found, best first.

    An answer has at most ``longest`` tokens. ``stop_ids`` are all token ids that end one.
    """

    def __init__(
        self, params: SamplingParams, stop_ids: Sequence[int], longest: int, watch: StopWatch | None = None
    ) -> None:
        self.beams: list[Beam] = [Beam(watch=watch)]
        self.answers: list[Beam] = []
        self.done = False
        self._width = params.beam_width
        self._penalty = params.length_penalty
        self._early = params.early_stopping
        self._shortest = params.min_tokens
        self._shown = params.logprobs or 0
        self._stop_ids = frozenset(stop_ids)
        self._longest = longest

    def advance(self, rows: Iterable[Logprobs]) -> None:
        """A round: what the model makes of each beam, one position with at least ``likeliest_of`` tokens."""
        length = len(self.beams[0].tokens) + 1
        beams: list[Beam] = []
        for rank, extension in enumerate(self._ranked(rows, length)):
            if rank >= self._width and (len(beams) == self._width or length == self._longest):
                break
            beam = self._extend(extension, length)
            if beam.finish is None:
                beams.append(beam)
            elif rank < self._width:
                self.answers.append(beam)
        self.answers = sorted(self.answers, key=lambda answer: -answer.score)[: self._width]
        self.beams = beams
        self.done = not self.beams or self._settled(length)

    def _ranked(self, rows: Iterable[Logprobs], length: int) -> Iterator[Extension]:
        """All extensions, best first; of equally good ones that of the better beam. Made as they are asked for."""
        of_beams = (self._extensions(beam, row, length) for beam, row in zip(self.beams, rows, strict=True))
        return heapq.merge(*of_beams, key=lambda extension: -extension.logprob)

    def _extensions(self, beam: Beam, row: Logprobs, length: int) -> Iterator[Extension]:
        """Those of a beam, best first. The first entry of a position is what was sampled, and comes again behind."""
        early = length <= self._shortest
        for place, (token, value) in enumerate(zip(row.ids[0], row.values[0], strict=True)):
            if place and not (early and token in self._stop_ids):
                yield Extension(beam.logprob + value, beam, row, place)

    def _extend(self, extension: Extension, length: int) -> Beam:
        beam, token = extension.beam, extension.token
        watch = None if beam.watch is None else beam.watch.fork()
        stopped = watch is not None and watch.push(token, early=length <= self._shortest)
        ended = stopped or token in self._stop_ids
        finish = FinishReason.STOP if ended else FinishReason.LENGTH if length == self._longest else None
        return Beam(
            tokens=(*beam.tokens, token),
            logprob=extension.logprob,
            positions=(*beam.positions, _position(extension, self._shown)),
            watch=watch,
            finish=finish,
            stopped=stopped,
            score=0.0 if finish is None else self._score(extension.logprob, length),
        )

    def _settled(self, length: int) -> bool:
        """Whether the answers are final while beams could still go on.

        ``early_stopping`` says when: at once if there are enough of them (True); when the best beam, ended here, could
        not join them (False); when it could not at any length that may come ("never").
        """
        if len(self.answers) < self._width:
            return False
        if self._early is True:
            return True
        far = self._early == "never" and self._penalty > 0.0
        best = self._score(self.beams[0].logprob, self._longest if far else length)
        return best <= self.answers[-1].score

    def _score(self, logprob: float, length: int) -> float:
        return float(logprob / length**self._penalty)


def likeliest_of(params: SamplingParams, stop_ids: Sequence[int]) -> int:
    """How many of the likeliest tokens of each beam a round looks at.

    The best ``width`` extensions, and as many that do not end the answer: those that end it may all come first.
    """
    return max(params.beam_width + max(params.beam_width, len(stop_ids)), params.logprobs or 0)


def _position(extension: Extension, shown: int) -> Logprobs:
    """The token that was chosen, and the ``shown`` likeliest ones."""
    row, place = extension.row, extension.place
    ids, values, ranks = row.ids[0], row.values[0], row.ranks[0]
    return Logprobs(
        ((ids[place], *ids[1 : 1 + shown]),),
        ((values[place], *values[1 : 1 + shown]),),
        ((ranks[place], *ranks[1 : 1 + shown]),),
    )
