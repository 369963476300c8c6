"""Windows over a text: each token is scored once, with the context it is promised."""

from __future__ import annotations

import math
import random

import pytest

from lsv import LLM
from lsv.engine.engine import Engine
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import ConfigError
from lsv_bench.eval.perplexity import choose_windows, measure_perplexity, spans
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.text import letters


def test_each_token_is_scored_once_with_its_context() -> None:
    rng = random.Random(0)
    for _ in range(300):
        context = rng.randint(2, 40)
        stride, count = rng.randint(1, context - 1), rng.randint(2, 200)
        scored: list[int] = []
        for span in spans(range(count), context, stride):
            assert len(span.ids) <= context
            first = span.ids[span.first]
            assert first - span.ids[0] >= min(first, context - stride), (context, stride, count)
            scored += span.ids[span.first :]
        assert scored == list(range(1, count)), (context, stride, count)


def test_perplexity_of_a_model_that_gives_each_token_the_same_chance() -> None:
    with LLM.from_engine(Engine(engine_config(), FakeExecutor(), Fcfs(), parts=core_parts), letters(97)) as llm:
        windows: list[None] = []
        text = "".join(chr(0x41 + number % 90) for number in range(500))
        found = measure_perplexity(llm, text, 64, 16, lambda: windows.append(None))
    assert (found.tokens, len(windows)) == (499, 1 + math.ceil((500 - 64) / 16))
    assert found.nll == pytest.approx(0.5 * 499)
    assert found.perplexity == pytest.approx(math.exp(0.5))
    assert found.bytes == len(text[1:].encode())
    assert found.bits_per_byte == pytest.approx(0.5 * 499 / math.log(2) / found.bytes)


def test_a_text_of_one_token_is_refused() -> None:
    with (
        LLM.from_engine(Engine(engine_config(), FakeExecutor(), Fcfs(), parts=core_parts), letters(97)) as llm,
        pytest.raises(ConfigError, match="two at least"),
    ):
        measure_perplexity(llm, "A", 64, 32)


def test_windows_by_default_and_what_is_refused() -> None:
    assert choose_windows(None, None, 4096) == (1024, 512)
    assert choose_windows(None, None, 256) == (255, 127)
    assert choose_windows(100, 99, 256) == (100, 99)
    with pytest.raises(ConfigError, match="at most 255"):
        choose_windows(256, None, 256)
    with pytest.raises(ConfigError, match="stride=100 must be less than context=100"):
        choose_windows(100, 100, 256)
