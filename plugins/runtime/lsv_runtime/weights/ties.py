"""Heads that share the embedding's weight by config.json, beside files that say otherwise.

lsv decides as transformers does: where files hold both tensors and they differ, the head is not tied; where they hold
only one of the two, it serves as both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

from lsv_runtime.weights.checkpoint import CheckpointSource, RenamedSource
from lsv_runtime.weights.place import Tie

log = logging.getLogger(__name__)

_ROWS = 4096
"""Rows of two tensors that are compared at a time."""


class TiedSource(RenamedSource):
    """Another source, where a head's tensor stands for the embedding's if the files have the head's alone."""

    def __init__(self, source: CheckpointSource, ties: Iterable[Tie]) -> None:
        stored = source.tensors()
        alone = {tie.head: tie.embedding for tie in ties if tie.head in stored and tie.embedding not in stored}
        for head, embedding in alone.items():
            log.info("the checkpoint has %s alone, which also serves as %s", head, embedding)
        super().__init__(source, lambda name: alone.get(name, name))


def find_untied(source: CheckpointSource, ties: Iterable[Tie], dtype: torch.dtype) -> frozenset[str]:
    """The tied heads of which files hold a tensor that differs from the embedding's once both are of ``dtype``."""
    stored = source.tensors()
    both = (tie for tie in ties if tie.head in stored and tie.embedding in stored)
    return frozenset(tie.head for tie in both if not _are_equal(source, tie, dtype))


def _are_equal(source: CheckpointSource, tie: Tie, dtype: torch.dtype) -> bool:
    shape, other = (source.tensors()[name].shape for name in tie)
    if shape != other:
        return False
    for first in range(0, shape[0], _ROWS):
        last = min(first + _ROWS, shape[0])
        head = source.read(tie.head, first, last).to(dtype, copy=True)  # the next read may reuse its memory
        if not torch.equal(head, source.read(tie.embedding, first, last).to(dtype)):
            return False
    return True
