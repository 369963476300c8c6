"""Real weights on an emulated platform: the next one with each run, or those in LSV_TEST_REAL_PLATFORMS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lsv import LLM
from published.checks import ask, find_differences
from published.golden import read_golden
from published.models import Published

from .conftest import PLACE

PLATFORMS = ("xpu", "hpu", "cuda", "rocm", "torch")
TOKENS = 6


def platforms_of_this_run() -> list[str]:
    """The file ``runs`` counts the runs, so all workers choose the same."""
    if named := os.environ.get("LSV_TEST_REAL_PLATFORMS"):
        return named.split()
    assert PLACE is not None
    counter = Path(PLACE) / "runs"
    runs = int(counter.read_text()) if counter.exists() else 0
    return [PLATFORMS[runs % len(PLATFORMS)]]


@pytest.mark.parametrize("platform", platforms_of_this_run())
def test_an_emulated_platform_gives_the_same_answers(
    published: Published, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LSV_HPU_SKIP_WARMUP", "1")
    answers = [answer for answer in read_golden("smollm2").answers if answer.name in ("chat 0", "russian", "python")]
    options = {"enforce_eager": True, "kv_cache_memory_bytes": 200_000_000, "max_model_len": 512}
    with LLM(str(published.smollm2()), platform=platform, emulate=True, dtype="float32", **options) as llm:
        assert list(find_differences(answers, ask(llm, answers, TOKENS))) == []
