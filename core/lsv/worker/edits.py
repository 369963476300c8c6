"""Edits of single tokens' logits as arrays of records, made and joined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from lsv.nn.sampling import EDIT, Edits, Kind

NO_EDITS: Edits = np.empty(0, EDIT)

Tokens = Sequence[int] | npt.NDArray[np.signedinteger]


def make_edits(kind: Kind, tokens: Tokens, first: npt.ArrayLike = 0.0, second: npt.ArrayLike = 0.0) -> Edits:
    """One of a kind for each of the tokens, with their arguments."""
    edits = np.empty(len(tokens), EDIT)
    edits["token"], edits["kind"], edits["first"], edits["second"] = tokens, kind, first, second
    return edits


def join_edits(parts: Iterable[Edits]) -> Edits:
    """One after the other; by their bytes, because numpy takes microseconds to compare the records' fields."""
    joined = b"".join(part.tobytes() for part in parts if len(part))
    return np.frombuffer(joined, EDIT) if joined else NO_EDITS


def within(tokens: Iterable[int], vocabulary: int) -> list[int]:
    """The distinct tokens that exist."""
    return [token for token in dict.fromkeys(tokens) if 0 <= token < vocabulary]
