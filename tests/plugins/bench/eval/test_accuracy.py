"""Answers and choices judged on an engine whose tokens are known beforehand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lsv import LLM, SamplingParams
from lsv.engine.engine import Engine
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import BadRequest, ConfigError
from lsv_bench.eval.accuracy import judge_choices, measure_accuracy, summarise
from lsv_bench.eval.matching import normalise
from lsv_bench.eval.paired import compare
from lsv_bench.eval.questions import Question, make_questions
from lsv_bench.eval.run import Work, evaluate
from lsv_testing.fakes import tokens as fake_tokens
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.requests import make_request
from lsv_testing.fakes.text import letters

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
TOKENIZER = letters(97, templates={"default": TEMPLATE})


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_engine(Engine(engine_config(), FakeExecutor(), Fcfs(), parts=core_parts), TOKENIZER) as made:
        yield made


def said(prompt: str, count: int = 6) -> str:
    """What the engine answers."""
    params = SamplingParams(temperature=0.0, max_tokens=count)
    request = make_request(0, tuple(TOKENIZER.encode(prompt)), sampling=params, stop_ids=TOKENIZER.eos_ids)
    return TOKENIZER.decode(fake_tokens.expected_output(request, 10_000))


def test_generated_answers_are_matched(llm: LLM) -> None:
    entries = [
        {"prompt": "Mira", "answer": said("Mira"), "category": "b"},
        {"prompt": "Tobin", "answer": "x"},
        {"messages": [{"role": "user", "content": "Lena"}], "answers": ["x", f" {said('Lena')}\n"], "category": "b"},
        {"prompt": "Oskar", "answer": said("Oskar", 2), "max_tokens": 2, "category": "a"},
        {"prompt": "Oskar", "answer": said("Oskar")[0], "stop": [said("Oskar")[1]], "category": "a"},
    ]
    done: list[None] = []
    found = measure_accuracy(llm, make_questions(entries, "q"), max_tokens=6, done=lambda: done.append(None))
    assert [answer.right for answer in found.answers] == [True, False, True, True, True]
    assert [answer.place for answer in found.answers] == [f"q:{number}" for number in range(1, 6)]
    assert (found.right, found.accuracy, found.by_length, len(done)) == (4, 0.8, None, 5)
    assert list(found.categories.items()) == [("a", (2, 2)), ("b", (2, 2))]
    assert found.answers[1].text == normalise(said("Tobin"))


def test_choices_are_scored_on_their_own_tokens(llm: LLM) -> None:
    """Every token has the log probability -0.5, so the shortest is likeliest, and by length all are the same."""
    prompt = {"messages": [{"role": "user", "content": "Sky"}]}
    entries = [
        {**prompt, "choices": ["long", "ab"], "answer": "ab"},
        {**prompt, "choices": ["long", "ab"], "answer": 0},
        {"prompt": "Mira", "answer": said("Mira")},
    ]
    found = measure_accuracy(llm, make_questions(entries, "q"), max_tokens=6)
    assert [(answer.text, answer.right, answer.right_by_length) for answer in found.answers[:2]] == [
        ("ab", True, False), ("ab", False, True),
    ]  # fmt: skip
    assert (found.right, found.by_length) == (2, 0.5)


def test_choices_by_sum_and_by_length() -> None:
    question = Question(place="q:1", prompt="x", choices=("yes", "certainly", "no"), correct=(1,))
    judged = judge_choices(question, [-2.0, -3.0, -2.5])
    assert (judged.text, judged.right, judged.right_by_length) == ("yes", False, True)


@pytest.mark.row("F-428")
def test_answers_that_are_numbers(llm: LLM) -> None:
    """The fake model's answers hold no digit; a bare word is no number either."""
    found = measure_accuracy(llm, make_questions([{"prompt": "Mira", "answer": 5}], "q"), max_tokens=6, match="number")
    assert (found.accuracy, found.flexible, found.by_length) == (0.0, 0.0, None)
    assert found.answers[0].right_flexibly is False
    assert measure_accuracy(llm, make_questions([{"prompt": "M", "answer": 5}], "q"), max_tokens=6).flexible is None


def test_a_question_that_is_too_long_is_named(llm: LLM) -> None:
    entries = [{"prompt": "x", "answer": "y"}, {"prompt": "A" * 300, "answer": "y"}]
    with pytest.raises(ConfigError, match=r"question q:2 is too long: it takes 301 tokens, the longest request is 256"):
        measure_accuracy(llm, make_questions(entries, "q"), max_tokens=6)
    entries[1] |= {"choices": ["y", "n"]}
    with pytest.raises(ConfigError, match="question q:2 is too long"):
        measure_accuracy(llm, make_questions(entries, "q"), max_tokens=6)


def test_a_conversation_needs_a_template() -> None:
    with LLM.from_engine(Engine(engine_config(), FakeExecutor(), Fcfs(), parts=core_parts), letters(97)) as llm:
        questions = make_questions([{"messages": [{"role": "user", "content": "x"}], "answer": "y"}], "q")
        with pytest.raises(BadRequest, match="chat template"):
            measure_accuracy(llm, questions, max_tokens=6)


def test_more_questions_than_the_engine_is_given_at_once(llm: LLM) -> None:
    prompts = [f"Q{chr(0x41 + number % 50)}{chr(0x41 + number // 50)}" for number in range(300)]
    entries = [{"prompt": prompt, "answer": said(prompt, 3)} for prompt in prompts]
    assert measure_accuracy(llm, make_questions(entries, "q"), max_tokens=3).accuracy == 1.0


def test_a_run_holds_all_that_was_asked(llm: LLM) -> None:
    questions = make_questions([{"prompt": "Mira", "answer": said("Mira")}], "q")
    begun: list[str] = []
    work = Work(questions=questions, max_tokens=6, text="Some text", windows=(8, 4))
    run = evaluate(llm, work, lambda what, total: begun.append(what), lambda: None)
    assert (run.format, run.dtype, begun) == ("none", "float32", ["questions", "text"])
    assert run.accuracy is not None
    assert run.perplexity is not None
    again = compare(run, run)
    assert (again.kept, again.gained, again.lost, again.same, again.p, again.perplexity_ratio) == (100, 0, 0, 1, 1, 1)


def test_an_error_of_the_engine_names_the_format() -> None:
    broken = engine_config(quantization="nf3", options={"fake.fail": 0})
    questions = make_questions([{"prompt": "Mira", "answer": "x"}], "q")
    with (
        LLM.from_engine(Engine(broken, FakeExecutor(), Fcfs(), parts=core_parts), TOKENIZER) as llm,
        pytest.raises(Exception, match=r"^nf3: .*non-finite logits"),
    ):
        evaluate(llm, Work(questions=questions), lambda what, total: None, lambda: None)


def test_summary_of_one_answer() -> None:
    question = Question(place="q:1", prompt="x", choices=("a", "b"), correct=(0,))
    found = summarise([judge_choices(question, [-1.0, -2.0])])
    assert (found.accuracy, found.by_length, found.categories) == (1.0, 1.0, {})
