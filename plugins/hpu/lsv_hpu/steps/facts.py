"""What a step computes, as its log and its trace tell it."""

from __future__ import annotations

from typing import NamedTuple

from lsv_hpu.buckets.table import DECODE


class StepFacts(NamedTuple):
    kind: str
    """As in the plan."""
    rows: int
    tokens: int
    """New tokens of all rows."""
    longest: int
    """Tokens of the longest row, with those before the step."""
    blocks: int
    """Cache blocks of the longest row."""

    @property
    def is_prompt(self) -> bool:
        return self.kind != DECODE
