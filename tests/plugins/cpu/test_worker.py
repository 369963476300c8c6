"""Whole models on the cpu platform, its kernels bound, against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lsv_models.plugin
from lsv.config import EngineConfig
from lsv.request.params import SamplingParams
from lsv.scheduler.plan import Begin, Grown, Kind, Rows, StepPlan
from lsv_cpu import native, plugin
from lsv_runtime.worker.worker import Worker
from lsv_testing.catalog import catalog_of
from lsv_testing.tiny import tiny

PROMPT = tuple(range(40, 110))
TOKENS = 12
CHUNK = 32


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    native.select()


@pytest.mark.parametrize("use", ["auto", "off"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_greedy_tokens_are_those_of_transformers(family: str, use: str, tmp_path: Path) -> None:
    checkpoint = tiny(family, tmp_path)
    config = EngineConfig(
        model=str(checkpoint), served_names=(family,), tokenizer=str(checkpoint), architecture=family,
        model_offer=family, platform="cpu", attention="cpu-paged", dtype="float32", block_size=16, max_model_len=128,
        num_blocks=40, options={"cpu.threads": 1, "cpu.native": use},
    )  # fmt: skip
    worker = Worker(config, catalog_of(plugin, lsv_models.plugin))
    fit = worker.start(lambda stage, done, total: None)
    bound = {line.op: line.implementation for line in fit.ops}
    assert bound["layer"] == ("lsv_cpu.layer:FusedLayer" if use == "auto" else "reference")
    tokens = generate(worker, groups=len(fit.groups))
    worker.close()
    assert tokens == generate_with_transformers(checkpoint)


def generate(worker: Worker, groups: int) -> list[int]:
    """The prompt in chunks, then token by token; every group gets blocks of its own, last ones first."""
    begin = (Begin(0, PROMPT, len(PROMPT), SamplingParams(temperature=0.0, max_tokens=None)),)
    blocks = tuple(Grown(0, group, tuple(range(10 * group + 8, 10 * group, -1))) for group in range(groups))
    done, drawn = 0, []
    while len(drawn) < TOKENS:
        length = len(PROMPT) + len(drawn)
        count = min(CHUNK, length - done)
        rows = Rows((0,), (done,), (count,), (0,), (done + count == length,))
        result = worker.step(StepPlan(step=done, kind=Kind.MIXED, begin=begin, blocks=blocks, rows=rows))
        assert not result.failed
        drawn += result.tokens[0]
        done, begin, blocks = done + count, (), ()
    return drawn


def generate_with_transformers(checkpoint: Path) -> list[int]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = list(PROMPT)
    with torch.inference_mode():
        for _ in range(TOKENS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]
