"""How fast a format is: one stream, sixteen streams and prompts, measured by the latency benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from lsv_base.errors import ConfigError
from lsv_bench.datasets import random_samples
from lsv_bench.figures import Figures, medians
from lsv_bench.offline import measure_latency

if TYPE_CHECKING:
    from lsv import LLM

STREAMS = 16
_ROUNDS = 5
_ENOUGH = 10.0
"""Seconds after which no further round begins, and of decoding in a round: some formats run without a kernel."""
_VOCABULARY = 1000
"""Prompts are made of ids below it."""


class Lengths(msgspec.Struct, frozen=True):
    """Tokens of the one stream's prompt, which sixteen streams share out among them, and of each answer."""

    prompt: int
    answer: int


def measure_speed(llm: LLM, lengths: Lengths, done: Callable[[], None] = lambda: None) -> Figures:
    """Tokens a second, medians of rounds: prompts, one stream, all streams together; ``done`` is called after a round.

    A slow format gets fewer rounds and shorter answers. Raises ``ConfigError`` when the lengths are more than the
    engine's longest request.
    """
    if lengths.prompt + lengths.answer > llm.fit.max_model_len:
        raise ConfigError(
            f"input_len={lengths.prompt} and output_len={lengths.answer} are more than the longest request, "
            f"{llm.fit.max_model_len} tokens",
            param="input_len",
        )
    one, many = (_median(llm, streams, lengths, done) for streams in (1, STREAMS))
    return {
        "prefill_tokens_per_s": one["prefill_tokens_per_s"],
        "decode_tokens_per_s": one["decode_tokens_per_s"],
        f"decode_{STREAMS}_tokens_per_s": many["decode_tokens_per_s"],
    }


def _median(llm: LLM, streams: int, lengths: Lengths, done: Callable[[], None]) -> Figures:
    """Figures of a batch of ``streams``, after a short one that warms up and says how long a step takes."""
    vocabulary, prompt = min(_VOCABULARY, llm.fit.vocab_size), max(1, lengths.prompt // streams)

    def measure(answer: int) -> Figures:
        samples = random_samples(streams, prompt, answer, vocab=vocabulary)
        return measure_latency(llm, samples, warmup=0, rounds=1, done=done)

    steps_in_time = int(_ENOUGH * measure(2)["decode_tokens_per_s"] / streams)
    answer = min(lengths.answer, max(2, steps_in_time))
    rounds: list[Figures] = []
    began = time.perf_counter()
    while len(rounds) < _ROUNDS and (not rounds or time.perf_counter() - began < _ENOUGH):
        rounds.append(measure(answer))
    return medians(rounds)
