"""A logits processor that forbids a token."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lsv_runtime.logits_processor import LogitsProcessor
from lsv_sample.plugin import Forbidden


class Forbid(LogitsProcessor[Forbidden]):
    def apply(self, logits: Tensor, states: Sequence[Forbidden]) -> Tensor:
        for row, forbidden in zip(logits, states, strict=True):
            row[forbidden.token] = float("-inf")
        return logits
