"""Compares texts atom by atom: a mark such as ``<tool_call>`` is never split."""

from __future__ import annotations

import re
from collections.abc import Sequence

ID = "\ue000"
"""Stands for a call's id."""
INDEX = "\ue001"
"""Stands for a number that differs from call to call."""
SPACE = " \t\r\n"
_ATOM = re.compile(r"<[^<>]{1,64}>|<[^<>]{1,64}\Z|\[/?[A-Z_]{1,32}\]|[A-Za-z0-9_]+|.", re.DOTALL)


def split_atoms(text: str) -> list[str]:
    """Marks in angle or square brackets, words, and single characters. The last mark may be open: ``<function=``."""
    return _ATOM.findall(text)


def common_prefix(one: str, other: str) -> tuple[str, str, str]:
    """The common beginning of two texts, and the rest of each. Numbers that differ become ``INDEX``."""
    same, one_left, other_left = _common(split_atoms(one), split_atoms(other))
    return "".join(same), "".join(one_left), "".join(other_left)


def common_suffix(one: str, other: str) -> tuple[str, str, str]:
    """The common end of two texts, and what precedes it in each. Numbers that differ become ``INDEX``."""
    same, one_left, other_left = _common(split_atoms(one)[::-1], split_atoms(other)[::-1])
    return "".join(reversed(same)), "".join(reversed(one_left)), "".join(reversed(other_left))


def first_mark(text: str) -> tuple[str, str]:
    """The first mark of a text, and the rest; the whole text if it does not begin with a mark."""
    atoms = split_atoms(text)
    return (atoms[0], "".join(atoms[1:])) if atoms and atoms[0][0] == "<" else (text, "")


def before(text: str, end: str) -> str:
    """A text without its ``end``."""
    return text[: len(text) - len(end)]


def unlist(mark: str) -> str:
    """A mark without white space, and without the brackets and commas of a list around it."""
    return mark.strip(SPACE).rstrip("[" + SPACE).lstrip("," + SPACE)


def has_hole(text: str) -> bool:
    """Whether a text contains an id or a number."""
    return ID in text or INDEX in text


def literal_start(text: str) -> str:
    """A text up to its first id or number."""
    return text.partition(ID)[0].partition(INDEX)[0]


def literal_end(text: str) -> str:
    """A text after its last id or number."""
    return text.rpartition(ID)[2].rpartition(INDEX)[2]


def _common(one: Sequence[str], other: Sequence[str]) -> tuple[list[str], Sequence[str], Sequence[str]]:
    same: list[str] = []
    for left, right in zip(one, other, strict=False):
        if left != right and not (left.isdigit() and right.isdigit()):
            break
        same.append(left if left == right else INDEX)
    return same, one[len(same) :], other[len(same) :]
