"""Gathering answers from chunks, and choosing the best of them."""

from __future__ import annotations

import pytest

from lsv.engine.answers import Answer, Answers, rank
from lsv.request.outputs import Chunk, TokenLogprob
from lsv.request.params import SamplingParams
from lsv.request.request import FinishReason


def chunk(text: str, logprob: float, *, index: int = 0, **fields: object) -> Chunk:
    positions = tuple((TokenLogprob(ord(letter), letter, logprob, 1),) for letter in text)
    return Chunk(index=index, text=text, ids=tuple(map(ord, text)), logprobs=positions, **fields)


def answer(text: str, logprob: float) -> Answer:
    made = Answer()
    made.add(chunk(text, logprob))
    return made


def test_an_answer_grows_by_chunks():
    made = answer("ab", -0.5)
    made.add(chunk("c", -2.0, finish=FinishReason.STOP, stop="d"))
    made.add(Chunk())
    assert (made.text, bytes(made.ids), made.finish, made.stop) == ("abc", b"abc", FinishReason.STOP, "d")
    assert (made.cumulative_logprob, made.mean_logprob) == (-3.0, -1.0)
    shown = made.output(4, show_logprobs=False)
    assert (shown.index, shown.text, shown.token_ids, shown.logprobs) == (4, "abc", tuple(b"abc"), None)
    assert (shown.cumulative_logprob, shown.finish_reason, shown.stop_reason) == (-3.0, "stop", "d")
    assert len(made.output(0, show_logprobs=True).logprobs) == 3
    assert Answer().output(0, show_logprobs=True).cumulative_logprob is None


@pytest.mark.row("F-038", "F-346")
def test_a_long_answer_is_not_worse_for_its_length():
    short, long, unlikely = answer("a", -0.5), answer("abcd", -0.25), answer("a", -0.75)
    assert short.cumulative_logprob > long.cumulative_logprob
    assert rank([short, unlikely, long], 2) == [long, short]
    assert rank([short, unlikely, long], 3) == [short, unlikely, long], "nothing to choose"


def test_answers_of_a_request():
    answers = Answers(SamplingParams(n=1, best_of=2))
    answers.add(chunk("a", -0.5, cached=3, prompt_logprobs=(None,)))
    assert not answers.finished
    answers.add(chunk("b", -0.25, index=1, finish=FinishReason.LENGTH))
    answers.add(chunk("a", -0.5, finish=FinishReason.LENGTH))
    assert answers.finished
    assert (answers.cached, answers.prompt_logprobs) == (3, (None,))
    assert [best.text for best in answers.best()] == ["b"]
