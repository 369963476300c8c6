"""Conformance of logits processors: a row depends on its own request alone, also after a preemption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv_runtime.logits_processor import LogitsProcessor

_STEPS = 6


class GrowingHistory:
    """The ``lsv_runtime.logits_processor.History`` of a request that is made up."""

    def __init__(self, prompt: Sequence[int], output: Sequence[int] = ()) -> None:
        self.prompt = len(prompt)
        self._ids = [*prompt, *output]

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        return np.array(self._ids, np.int32)

    @property
    def output(self) -> npt.NDArray[np.int32]:
        return self.ids[self.prompt :]

    def append(self, token: int) -> None:
        self._ids.append(token)

    def copy(self) -> GrowingHistory:
        return GrowingHistory(self._ids[: self.prompt], self._ids[self.prompt :])


def check_logits_processor(processor: LogitsProcessor[Any], arguments: Sequence[Any]) -> None:
    """Answers of a few tokens under requests with these ``arguments``, as the offer's type, to random logits.

    Raises ``AssertionError`` where a row comes out otherwise together with the others than alone, where a request that
    begins again with its output goes on otherwise, or where a row holds NaN, plus infinity or no token at all.
    """
    generator = torch.Generator().manual_seed(0)
    histories = [GrowingHistory(range(row + 1)) for row in range(len(arguments))]
    states = [processor.begin(one, history) for one, history in zip(arguments, histories, strict=True)]
    for step in range(_STEPS):
        logits = torch.randn(len(states), processor.vocab_size, generator=generator).to(processor.device)
        together = _apply(processor, logits, states)
        for row, (one, history) in enumerate(zip(arguments, histories, strict=True)):
            what = f"step {step}, row {row}"
            alone = _apply(processor, logits[row : row + 1], states[row : row + 1])
            assert torch.equal(together[row], alone[0]), f"{what}: the row depends on the others of its batch"
            again = processor.begin(one, history.copy())
            resumed = _apply(processor, logits[row : row + 1], [again])
            assert torch.equal(together[row], resumed[0]), f"{what}: it goes on otherwise after a preemption"
            processor.end(again)
            history.append(int(together[row].argmax()))
    for state in states:
        processor.end(state)


def _apply(processor: LogitsProcessor[Any], logits: Tensor, states: Sequence[Any]) -> Tensor:
    found = processor.apply(logits.clone(), states)
    assert found.shape == logits.shape, f"logits {tuple(logits.shape)} became {tuple(found.shape)}"
    assert bool((found < float("inf")).all()), "there are NaN or plus infinity among the logits it gives"
    assert bool((found > float("-inf")).any(dim=-1).all()), "it forbids every token"
    return found
