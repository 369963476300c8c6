"""Many requests at one engine, answered as they come, and log-likelihoods read from their prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from lsv.request.outputs import RequestOutput
from lsv.request.params import SamplingParams

if TYPE_CHECKING:
    from lsv import LLM

_AT_ONCE = 256
"""Requests the engine is given at one time; further ones, and answers that have been read, take no memory."""
_SCORED = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)

Ask = tuple[Sequence[int], SamplingParams]
"""A prompt's token ids, and how it is answered."""


class Span(msgspec.Struct, frozen=True):
    """Token ids of which those from ``first`` (at least 1) on are scored."""

    ids: Sequence[int]
    first: int


def answers(llm: LLM, asked: Iterable[Ask]) -> Iterator[tuple[int, RequestOutput]]:
    """Complete answers in the order they end, each with the number of its request, from 0."""
    engine, waiting = llm.llm_engine, enumerate(asked)
    under_way: dict[str, int] = {}
    try:
        while True:
            for number, (ids, params) in islice(waiting, _AT_ONCE - len(under_way)):
                engine.add_request(f"eval-{number}", {"prompt_token_ids": ids}, params)
                under_way[f"eval-{number}"] = number
            if not under_way:
                return
            for output in engine.step(finished_only=True):
                if isinstance(output, RequestOutput):
                    yield under_way.pop(output.request_id), output.checked()
    finally:
        engine.abort_request(list(under_way))


def log_likelihoods(llm: LLM, spans: Iterable[Span]) -> Iterator[tuple[int, float]]:
    """The summed log probability (natural) of each span's scored tokens, with the span's number, from 0.

    The engine reads them off as it goes through the prompt: no logits of more than a few positions exist at a time.
    """
    firsts: list[int] = []

    def ask() -> Iterator[Ask]:
        for span in spans:
            firsts.append(span.first)
            yield span.ids, _SCORED

    for number, output in answers(llm, ask()):
        positions = (output.prompt_logprobs or ())[firsts[number] :]
        yield number, sum(next(iter(position.values())).logprob for position in positions if position is not None)
