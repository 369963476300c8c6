"""The search by itself: what it keeps, when it ends, in which order it looks at things."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from lsv.beams.search import Beam, BeamSearch, likeliest_of
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason
from lsv.scheduler.plan import Logprobs, join_logprobs

VOCABULARY = 6
EOS = 5


def model(tokens: tuple[int, ...], seed: int = 0) -> list[float]:
    """Log probabilities of the next token, as a function of those before."""
    rng = random.Random(f"{seed} {tokens}")
    weights = [rng.random() ** 2 + 1e-3 for _ in range(VOCABULARY)]
    return [math.log(weight / sum(weights)) for weight in weights]


def position(values: list[float]) -> Logprobs:
    """All tokens, the likeliest first, behind the one that was sampled."""
    order = sorted(range(len(values)), key=lambda token: -values[token])
    order = [order[0], *order]
    ranks = (1, *range(1, len(order)))
    return Logprobs((tuple(order),), (tuple(values[token] for token in order),), (ranks,))


def run(longest: int, seed: int = 0, **params: object) -> BeamSearch:
    search = BeamSearch(SamplingParams(use_beam_search=True, **params), (EOS,), longest)
    while not search.done:
        search.advance([position(model(beam.tokens, seed)) for beam in search.beams])
    return search


def every_answer(longest: int, seed: int) -> list[tuple[float, tuple[int, ...]]]:
    """All there are, with the sums of their log probabilities."""
    found = []
    for length in range(1, longest + 1):
        for tokens in itertools.product(range(VOCABULARY), repeat=length):
            if EOS in tokens[:-1] or (length < longest and tokens[-1] != EOS):
                continue
            found.append((sum(model(tokens[:place], seed)[token] for place, token in enumerate(tokens)), tokens))
    return found


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_wide_search_that_never_gives_up_finds_the_best_of_all(seed: int, penalty: float) -> None:
    """With more beams than there are texts nothing is lost on the way."""
    search = run(4, seed, n=128, length_penalty=penalty, early_stopping="never")
    best = sorted((-logprob / len(tokens) ** penalty, tokens) for logprob, tokens in every_answer(4, seed))
    assert [answer.tokens for answer in search.answers[:3]] == [tokens for _, tokens in best[:3]]
    scores = [answer.score for answer in search.answers]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("seed", range(8))
def test_stopping_earlier_computes_no_more(seed: int) -> None:
    lengths = {
        early: max(len(answer.tokens) for answer in run(30, seed, n=3, early_stopping=early).answers)
        for early in (True, False, "never")
    }
    assert lengths[True] <= lengths[False] <= lengths["never"] <= 30


def test_answers_end_with_their_last_token() -> None:
    for answer in run(7, n=4).answers:
        ended = answer.tokens[-1] == EOS
        assert answer.finish is (FinishReason.STOP if ended else FinishReason.LENGTH)
        assert ended or len(answer.tokens) == 7
        assert EOS not in answer.tokens[:-1]
        assert answer.logprob == pytest.approx(
            sum(model(answer.tokens[:place])[token] for place, token in enumerate(answer.tokens))
        )
        assert answer.score == pytest.approx(answer.logprob / len(answer.tokens))


def test_min_tokens_holds_the_end_back() -> None:
    assert all(len(answer.tokens) > 5 for answer in run(9, n=3, min_tokens=5).answers)


def test_one_beam_is_greedy() -> None:
    greedy: tuple[int, ...] = ()
    while len(greedy) < 8 and EOS not in greedy:
        values = model(greedy)
        greedy += (values.index(max(values)),)
    assert run(8, n=1).answers[0].tokens == greedy


def test_the_better_beam_comes_first_among_equals() -> None:
    """All tokens are equally likely: the order is that of the beams, then that of the ids."""
    search = BeamSearch(SamplingParams(use_beam_search=True, n=3), (), 2)
    for _ in range(2):
        search.advance([position([-1.0] * VOCABULARY) for _ in search.beams])
    assert [answer.tokens for answer in search.answers] == [(0, 0), (0, 1), (0, 2)]


def test_only_what_is_looked_at_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    extend = BeamSearch._extend
    monkeypatch.setattr(BeamSearch, "_extend", lambda self, *given: made.append(given) or extend(self, *given))
    run(6, n=4)
    assert len(made) <= 6 * 8


def test_how_many_tokens_a_round_looks_at() -> None:
    params = SamplingParams(use_beam_search=True, n=4)
    assert likeliest_of(params, ()) == 8
    assert likeliest_of(params, range(9)) == 13
    assert likeliest_of(params.replace(logprobs=20), ()) == 20


def test_positions_are_joined() -> None:
    parts = [position(model((1,) * count)) for count in range(3)]
    joined = join_logprobs(parts)
    assert joined is not None
    assert joined.ids == tuple(part.ids[0] for part in parts)
    assert join_logprobs(()) is None


def test_a_beam_shows_as_many_tokens_as_are_asked_for() -> None:
    (answer,) = run(1, n=1, logprobs=2).answers
    (shown,) = answer.positions
    best = position(model(())).ids[0]
    assert shown.ids == ((answer.tokens[0], *best[1:3]),)
    assert isinstance(answer, Beam)
