"""Thinking that a model writes into its answer, between ``<think>`` and ``</think>``."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def part(content: str) -> tuple[str, str]:
    """The thinking at the beginning of an answer, and the rest; both may still be growing.

    Some chat templates write the opening tag themselves, so that a closing one alone, on a line of its own, counts too.
    """
    begun = content.lstrip().startswith(OPEN)
    thinking, closed, text = content.partition(CLOSE)
    if begun or (closed and _is_alone(thinking, text)):
        return thinking.strip().removeprefix(OPEN).strip(), text.lstrip()
    return "", content


def _is_alone(before: str, after: str) -> bool:
    return before.endswith("\n") and (not after or after.startswith("\n"))
