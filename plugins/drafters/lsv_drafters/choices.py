"""How drafts are drawn: each with the random number that it is verified with, so that it is right more often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lsv_runtime.drafts.drafter import Draftable
from lsv_runtime.nn.sampling import CHOICE, Choices


def choices_behind(sequences: Sequence[Draftable], drafts: int) -> Choices:
    """How the token of each sequence is chosen that comes behind so many drafts."""
    choices = np.frombuffer(bytearray(b"".join(one.choice for one in sequences)), CHOICE)
    choices["position"] = [len(one.ids) + drafts for one in sequences]
    return choices


def tell(drawn: Sequence[Tensor], rows: int) -> list[list[int]]:
    """The drafts of each row, up to one that failed; the device is waited for once.

    ``drawn`` has the tokens int64 of each place, for as many of the first rows as still want one there.
    """
    return part(torch.cat(list(drawn)), [len(place) for place in drawn], rows) if drawn else [[] for _ in range(rows)]


def part(drawn: Tensor, counts: Sequence[int], rows: int) -> list[list[int]]:
    """The same of the tokens of all places, one behind the other, which have as many as ``counts`` says."""
    found: list[list[int]] = [[] for _ in range(rows)]
    failed = [False] * rows
    flat = iter(drawn.tolist())
    for count in counts:
        for row in range(count):
            token = next(flat)
            failed[row] |= token < 0
            if not failed[row]:
                found[row].append(token)
    return found
