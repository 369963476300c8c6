"""What a misspelt name was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, or None where nothing comes close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """``"; did you mean …?"`` to append to an error, or nothing."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""
