"""Processors as they are written for vLLM, in modules that can be imported."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

NO_REPEAT = """
    import torch
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

    class NoRepeat(LogitsProcessor):
        '''No n-gram comes twice in an answer whose request names n; it learns of one token a step.'''

        def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool):
            self.rows = {}

        @classmethod
        def validate_params(cls, params: SamplingParams):
            size = (params.extra_args or {}).get("no_repeat_ngram_size", 2)
            if not isinstance(size, int):
                raise ValueError(f"no_repeat_ngram_size must be an integer, got {size!r}")

        def is_argmax_invariant(self):
            return False

        def update_state(self, batch_update: BatchUpdate | None):
            if not batch_update:
                return
            for row in batch_update.removed:
                self.rows.pop(row, None)
            for row, params, _, output in batch_update.added:
                self.rows.pop(row, None)
                if size := (params.extra_args or {}).get("no_repeat_ngram_size"):
                    self.rows[row] = (size, output, [0], {})
            for source, target, direction in batch_update.moved:
                first, second = self.rows.pop(source, None), self.rows.pop(target, None)
                if first is not None:
                    self.rows[target] = first
                if direction == MoveDirectionality.SWAP and second is not None:
                    self.rows[source] = second

        def apply(self, logits):
            for row, (size, output, known, following) in self.rows.items():
                while known[0] + size <= len(output):
                    *start, last = output[known[0] : known[0] + size]
                    following.setdefault(tuple(start), set()).add(last)
                    known[0] += 1
                if len(output) >= size - 1:
                    ending = tuple(output[len(output) - size + 1 :])
                    logits[row, list(following.get(ending, ()))] = -float("inf")
            return logits
"""
FORCE = """
    import torch
    from vllm import SamplingParams
    from vllm.logger import init_logger
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor, RequestLogitsProcessor

    logger = init_logger(__name__)

    class Force(AdapterLogitsProcessor):
        '''Each request names the token that its answer is made of; 13 is beyond it.'''

        def is_argmax_invariant(self) -> bool:
            return False

        def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
            target = params.extra_args and params.extra_args.get("target")
            return None if target is None else Target(target)

    class Target:
        def __init__(self, token):
            self.token = token

        def __call__(self, prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if self.token == 13:
                raise KeyError("thirteen")
            kept = logits[self.token].clone()
            logits.fill_(-float("inf"))
            logits[self.token] = kept
            return logits
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a module that can be imported by its name while a test runs, also in processes that it starts."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def module(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)

    return module
