"""Sampling on the host, for a device whose 64-bit integers are not exact: right, at the price of copying logits."""

from __future__ import annotations

import torch

from lsv.offers import OpSpec
from lsv_hpu import selection
from lsv_runtime.nn.sampling import Choices, Choose, Describe, Edits
from lsv_runtime.ops import Kernel


class HostChoose(Kernel):
    """``lsv_runtime.nn.sampling.Choose``; only rows that draw need the host."""

    def __init__(self, module: Choose, spec: OpSpec) -> None:
        self._module = module

    def forward(self, logits: torch.Tensor, choices: Choices, edits: Edits) -> torch.Tensor:
        there = logits.cpu() if choices["rate"].any() else logits
        return self._module.reference(there, choices, edits).to(logits.device)


class HostDescribe(Kernel):
    """``lsv_runtime.nn.sampling.Describe``; what it says stays on the host, whose integers are exact."""

    def __init__(self, module: Describe, spec: OpSpec) -> None:
        self._module = module

    def forward(self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, most: int) -> torch.Tensor:
        return self._module.reference(logits[rows].cpu(), torch.arange(len(rows)), tokens[rows].cpu(), most)


def why_not_on_host(spec: OpSpec) -> str | None:
    """None where a device is open that does not keep 64 bits."""
    return "the device is exact with 64-bit integers" if selection.exact_integers() else None
