"""Errors for schemas that are refused."""

from __future__ import annotations

from typing import Any

from lsv_guidance.schemas.json_text import shorten


class NotFollowed(ValueError):
    """A keyword is not supported. The message has the keyword, the path of its schema, and what to do instead."""

    def __init__(self, keyword: str, path: str, why: str) -> None:
        super().__init__(f"{keyword} at {path}: {why}" if keyword else f"{path}: {why}")


def malformed(keyword: str, path: str, expected: str, value: Any) -> NotFollowed:
    return NotFollowed(keyword, path, f"must be {expected}, got {shorten(value)}")
