"""Compares an engine's answers with the references' answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from lsv import LLM, RequestOutput, SamplingParams
from lsv.text.tokenizer import Tokenizer
from published.golden import Golden
from published.prompts import TEXTS, conversations
from published.reference import TOP, Answer

EXACT = 1e-4
"""How far log probabilities in float32 may be from the references', which add in another order."""


class Forced(NamedTuple):
    """How an engine scores the references' own answers. In bfloat16 with AVX-512 these are 0.022 and 0.991."""

    mean: float
    """The mean distance of log probabilities."""
    agreement: float
    """The share of tokens that are the likeliest for the engine too."""

    @property
    def is_near(self) -> bool:
        """Whether bfloat16 explains the distance."""
        return self.mean < 0.04 and self.agreement > 0.98


def find_other_prompts(tokenizer: Tokenizer, golden: Golden) -> list[str]:
    """The names of the prompts that the tokenizer, or its chat template, makes other tokens of."""
    found = {name: tokenizer.encode(text) for name, text in TEXTS.items()}
    if tokenizer.has_chat_template:
        for name, messages in conversations():
            text = tokenizer.render_chat(messages)
            found[name] = tokenizer.encode(text, add_special_tokens=False)
    expected = {answer.name: answer.prompt for answer in golden.answers}
    return [name for name, ids in found.items() if expected[name] != ids]


def ask(llm: LLM, answers: Sequence[Answer], count: int | None = None, **options: Any) -> list[RequestOutput]:
    """The engine's greedy answers to the same prompts, of ``count`` tokens or as many as the references gave."""
    params = [
        SamplingParams(temperature=0, max_tokens=count or len(answer.tokens), logprobs=TOP, ignore_eos=True)
        for answer in answers
    ]
    prompts: Any = [{"prompt_token_ids": answer.prompt} for answer in answers]
    return [output.checked() for output in llm.generate(prompts, params, use_tqdm=False, **options)]


def find_differences(
    answers: Sequence[Answer], outputs: Sequence[RequestOutput], tolerance: float = EXACT
) -> Iterator[str]:
    """A line for each answer that is not the references'. Fewer tokens are compared as far as they go."""
    for answer, output in zip(answers, outputs, strict=True):
        (made,) = output.outputs
        tokens = [int(token) for token in made.token_ids]
        if tokens != answer.tokens[: len(tokens)]:
            place = next(
                i for i, (ours, theirs) in enumerate(zip(tokens, answer.tokens, strict=False)) if ours != theirs
            )
            yield f"{answer.name}: token {place} is {tokens[place]}, not {answer.tokens[place]}"
            continue
        distance = max(_distances(answer, made.logprobs or []), default=0.0)
        if distance > tolerance:
            yield f"{answer.name}: a log probability is off by {distance:.2g}"


def _distances(answer: Answer, found: Sequence[Any]) -> Iterator[float]:
    for scores, ours in zip(answer.scores, found, strict=False):
        for token, score in scores:
            if token in ours:  # of two that are as likely, one may be missing
                yield abs(ours[token].logprob - score)


def score(llm: LLM, answers: Sequence[Answer]) -> Forced:
    """Has the engine read the references' answers instead of writing its own: rounding errors do not add up."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    prompts: Any = [{"prompt_token_ids": [*answer.prompt, *answer.tokens]} for answer in answers]
    distances, ranks = [], []
    for answer, output in zip(answers, llm.generate(prompts, params, use_tqdm=False), strict=True):
        read = (output.checked().prompt_logprobs or [])[len(answer.prompt) :]
        for token, scores, ours in zip(answer.tokens, answer.scores, read, strict=True):
            assert ours is not None
            distances.append(abs(ours[token].logprob - scores[0][1]))
            ranks.append(ours[token].rank)
    return Forced(fmean(distances), ranks.count(1) / len(ranks))
