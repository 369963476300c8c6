"""Accuracy on questions: generated answers matched exactly, or the likeliest of given choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from lsv.request.params import SamplingParams
from lsv_base.errors import ConfigError
from lsv_bench.datasets import Conversation
from lsv_bench.eval.asking import Ask, Span, answers, log_likelihoods
from lsv_bench.eval.matching import MATCHES
from lsv_bench.eval.questions import Question

if TYPE_CHECKING:
    from lsv import LLM


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a question. ``text`` is the normalised answer, or the chosen choice.

    ``right_by_length`` judges the choice with the largest log-likelihood a byte; None without choices.
    ``right_flexibly`` judges the answer's last number; None where texts are matched.
    """

    place: str
    text: str
    right: bool
    right_by_length: bool | None = None
    right_flexibly: bool | None = None
    category: str = ""


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Shares from 0 to 1. ``categories`` are (right, of).

    ``by_length`` is over the questions with choices, ``flexible`` over those whose answers are numbers; None for none.
    """

    questions: int
    right: int
    accuracy: float
    by_length: float | None
    flexible: float | None = None
    categories: Mapping[str, tuple[int, int]]
    answers: Sequence[Answer]


def measure_accuracy(
    llm: LLM,
    questions: Sequence[Question],
    *,
    max_tokens: int,
    match: str = "exact",
    done: Callable[[], None] = lambda: None,
) -> Accuracy:
    """Ask all questions, greedily; ``match`` names how answers are compared (``matching.MATCHES``).

    ``done`` is called after each answer and each choice.

    Raises ``ConfigError`` for a question that is too long, ``BadRequest`` for a conversation without chat template.
    """
    prompts = [encode_prompt(llm, question) for question in questions]
    generated = [number for number, question in enumerate(questions) if not question.choices]
    chosen = [number for number, question in enumerate(questions) if question.choices]
    found = _generate(llm, [(questions[n], prompts[n]) for n in generated], max_tokens, match, done)
    picked = _choose(llm, [(questions[n], prompts[n]) for n in chosen], done)
    judged = dict(zip((*generated, *chosen), (*found, *picked), strict=True))
    return summarise([judged[number] for number in range(len(questions))])


def summarise(judged: Sequence[Answer]) -> Accuracy:
    """Shares over one answer or more."""
    right = sum(answer.right for answer in judged)
    categories: dict[str, tuple[int, int]] = {}
    for answer in judged:
        before, total = categories.get(answer.category, (0, 0))
        categories[answer.category] = (before + answer.right, total + 1)
    return Accuracy(
        questions=len(judged),
        right=right,
        accuracy=right / len(judged),
        by_length=_share([answer.right_by_length for answer in judged]),
        flexible=_share([answer.right_flexibly for answer in judged]),
        categories={name: categories[name] for name in sorted(categories) if name},
        answers=judged,
    )


def _share(judged: Sequence[bool | None]) -> float | None:
    """Of those that were judged at all."""
    found = [right for right in judged if right is not None]
    return sum(found) / len(found) if found else None


def encode_prompt(llm: LLM, question: Question) -> tuple[int, ...]:
    """A conversation goes through the chat template, a text is continued as it is."""
    tokenizer = llm.get_tokenizer()
    if isinstance(question.prompt, Conversation):
        text = tokenizer.render_chat(question.prompt.messages, add_generation_prompt=True)
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    return tuple(tokenizer.encode(question.prompt))


def _generate(
    llm: LLM, asked: Sequence[tuple[Question, tuple[int, ...]]], max_tokens: int, match: str, done: Callable[[], None]
) -> list[Answer]:
    requests: list[Ask] = []
    for question, ids in asked:
        length = question.max_tokens or max_tokens
        _check_length(question, len(ids) + 1, llm)
        requests.append((ids, SamplingParams(temperature=0.0, max_tokens=length, stop=question.stop)))
    found: dict[int, Answer] = {}
    for number, output in answers(llm, requests):
        question = asked[number][0]
        verdict = MATCHES[match](output.outputs[0].text, question.answers)
        found[number] = Answer(
            place=question.place,
            text=verdict.text,
            right=verdict.right,
            right_flexibly=verdict.flexible,
            category=question.category,
        )
        done()
    return [found[number] for number in range(len(asked))]


def _choose(llm: LLM, asked: Sequence[tuple[Question, tuple[int, ...]]], done: Callable[[], None]) -> list[Answer]:
    spans = [_continued(llm, question, ids, choice) for question, ids in asked for choice in question.choices]
    likelihoods = [0.0] * len(spans)
    for number, likelihood in log_likelihoods(llm, spans):
        likelihoods[number] = likelihood
        done()
    found, first = [], 0
    for question, _ in asked:
        mine = likelihoods[first : first + len(question.choices)]
        found.append(judge_choices(question, mine))
        first += len(question.choices)
    return found


def judge_choices(question: Question, likelihoods: Sequence[float]) -> Answer:
    """The likeliest choice, and the likeliest by UTF-8 byte; of equal ones the first."""
    by_length = [value / len(choice.encode()) for value, choice in zip(likelihoods, question.choices, strict=True)]
    best, best_by_length = likelihoods.index(max(likelihoods)), by_length.index(max(by_length))
    return Answer(
        place=question.place,
        text=question.choices[best],
        right=best in question.correct,
        right_by_length=best_by_length in question.correct,
        category=question.category,
    )


def _continued(llm: LLM, question: Question, ids: tuple[int, ...], choice: str) -> Span:
    """The prompt with a choice behind it, scored from the first token in which it is no longer the prompt alone.

    A space comes between a text and a choice where neither has white space there; behind a conversation nothing does.
    """
    tokenizer = llm.get_tokenizer()
    if isinstance(question.prompt, Conversation):
        whole = (*ids, *tokenizer.encode(choice, add_special_tokens=False))
    else:
        space = "" if question.prompt[-1].isspace() or choice[0].isspace() else " "
        whole = tuple(tokenizer.encode(question.prompt + space + choice))
    same = next((n for n, (one, other) in enumerate(zip(ids, whole, strict=False)) if one != other), len(ids))
    _check_length(question, len(whole) + 1, llm)
    return Span(whole, max(1, same))


def _check_length(question: Question, length: int, llm: LLM) -> None:
    if length > llm.fit.max_model_len:
        raise ConfigError(
            f"question {question.place} is too long: it takes {length} tokens, the longest request is "
            f"{llm.fit.max_model_len}; raise --max-model-len or leave it out",
            param="questions",
        )
