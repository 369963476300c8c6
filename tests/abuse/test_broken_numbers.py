"""A cache page breaks once: one request fails, and no later request."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lsv import LLM, SamplingParams
from lsv_runtime.nn.model import Model
from lsv_runtime.nn.step import Step
from lsv_runtime.worker import runner
from lsv_runtime.worker.runner import ModelRunner

CHUNK = 64
PROMPT = [(7 * place) % 900 + 20 for place in range(100)]
ALIKE = [[*PROMPT[:CHUNK], *[500 + number] * 36] for number in range(5)]


def tensors(held: Any) -> Iterator[torch.Tensor]:
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, list | tuple):
        for part in held:
            yield from tensors(part)
    elif hasattr(held, "__dict__") or hasattr(held, "__slots__"):
        for name in getattr(held, "__slots__", None) or vars(held):
            yield from tensors(getattr(held, name, None))


@pytest.fixture
def break_page(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the next step that computes a chunk leave NaN in the first page that it writes."""
    armed, run = [False], runner.nn_model.run

    def broken(model: Model, step: Step) -> torch.Tensor:
        hidden = run(model, step)
        if armed[0] and len(step.ids) > CHUNK // 2:
            armed[0] = False
            (running,) = (one for one in gc.get_objects() if isinstance(one, ModelRunner) and one.model is model)
            for tensor in tensors(running.cache):
                written = next(page for page in range(1, len(tensor)) if tensor[page].float().abs().sum() > 0)
                tensor[written].fill_(torch.nan)
        return hidden

    monkeypatch.setattr(runner.nn_model, "run", broken)
    return lambda: armed.__setitem__(0, True)


def ask(llm: LLM, ids: Sequence[int], tokens: int = 4) -> str | None:
    """The error of a request; None if it is answered."""
    params = SamplingParams(max_tokens=tokens, temperature=0.0)
    (answer,) = llm.generate(prompt_token_ids=[[*ids]], sampling_params=params, use_tqdm=False)
    return None if answer.error is None else answer.error.message


def open_llm(folder: Path | None = None) -> LLM:
    kept = {} if folder is None else {"kv_offload_path": str(folder), "kv_offload_gib": 1}
    return LLM("lsv-demo", max_num_batched_tokens=CHUNK, max_num_seqs=4, **kept)


@pytest.mark.parametrize("behind", ["the device alone", "host memory and files"])
def test_a_broken_page_fails_one_request(behind: str, break_page: Callable[[], None], tmp_path: Path) -> None:
    folder = tmp_path if behind != "the device alone" else None
    with open_llm(folder) as llm:
        break_page()
        assert "not finite" in (ask(llm, PROMPT) or "")
        assert [ask(llm, ids) for ids in ALIKE] == [None] * len(ALIKE)
    if folder is not None:
        with open_llm(folder) as another:
            assert [ask(another, ids) for ids in (PROMPT, *ALIKE)] == [None] * (1 + len(ALIKE))


def test_an_unread_broken_page_fails_one_request(break_page: Callable[[], None]) -> None:
    """The first request ends with the step that breaks its page."""
    with open_llm() as llm:
        break_page()
        assert ask(llm, PROMPT[: CHUNK - 8], tokens=1) is None
        assert [ask(llm, ids) is not None for ids in ALIKE] == [True, *[False] * (len(ALIKE) - 1)]
