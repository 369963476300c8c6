"""``EDIT`` records, which say what requests change about their logits: made, and joined for a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from lsv_runtime.nn.sampling import EDIT, Edits, Kind

NO_EDITS: Edits = np.empty(0, EDIT)

Tokens = Sequence[int] | npt.NDArray[np.signedinteger]


def make_edits(kind: Kind, tokens: Tokens, first: npt.ArrayLike = 0.0, second: npt.ArrayLike = 0.0) -> Edits:
    """One edit of a kind for each of the tokens; its arguments ``first`` and ``second`` are one for all, or a list."""
    edits = np.empty(len(tokens), EDIT)
    edits["token"], edits["kind"], edits["first"], edits["second"] = tokens, kind, first, second
    return edits


def join_edits(parts: Iterable[Edits]) -> Edits:
    """All parts in one array; joined as bytes, because numpy takes microseconds to compare the records' fields."""
    some = [part for part in parts if len(part)]
    if len(some) < 2:
        return some[0] if some else NO_EDITS
    return np.frombuffer(b"".join([part.data for part in some]), EDIT)
