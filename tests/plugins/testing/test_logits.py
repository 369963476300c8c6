"""The conformance suite of logits processors passes sound ones, and finds what is wrong with others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lsv_runtime.logits_processor import History, LogitsProcessor
from lsv_testing.fakes.engine import engine_config
from lsv_testing.logits import check_logits_processor


class NoRepeats(LogitsProcessor[History]):
    """Forbids what the answer holds."""

    def begin(self, arguments: Any, history: History) -> History:
        return history

    def apply(self, logits: Tensor, states: Sequence[History]) -> Tensor:
        for row, history in zip(logits, states, strict=True):
            row[history.output.tolist()] = float("-inf")
        return logits


class LooksAround(LogitsProcessor[Any]):
    def apply(self, logits: Tensor, states: Sequence[Any]) -> Tensor:
        return logits - logits.mean()


class Forgets(NoRepeats):
    """Counts what it has seen by itself."""

    def begin(self, arguments: Any, history: History) -> Any:
        return [0]

    def apply(self, logits: Tensor, states: Sequence[Any]) -> Tensor:
        for row, seen in zip(logits, states, strict=True):
            row[: seen[0]] = float("-inf")
            seen[0] += 1
        return logits


class Divides(LogitsProcessor[Any]):
    def apply(self, logits: Tensor, states: Sequence[Any]) -> Tensor:
        return logits / 0.0


class ForbidsAll(LogitsProcessor[Any]):
    def apply(self, logits: Tensor, states: Sequence[Any]) -> Tensor:
        return logits.fill_(float("-inf"))


class Halves(LogitsProcessor[Any]):
    def apply(self, logits: Tensor, states: Sequence[Any]) -> Tensor:
        return logits[:, ::2]


def make(kind: type[LogitsProcessor[Any]]) -> LogitsProcessor[Any]:
    return kind(engine_config(), 20, torch.device("cpu"))


def test_a_sound_one_passes() -> None:
    check_logits_processor(make(NoRepeats), [None, 1, 2])


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (LooksAround, "depends on the others"),
        (Forgets, "depends on the others|after a preemption"),
        (Divides, "NaN or plus infinity"),
        (ForbidsAll, "forbids every token"),
        (Halves, r"\(2, 20\) became \(2, 10\)"),
    ],
)
def test_what_is_wrong_is_found(kind: type[LogitsProcessor[Any]], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_logits_processor(make(kind), [None, None])
