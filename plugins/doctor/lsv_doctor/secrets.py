"""Removes private data from a report: keys, tokens, passwords, and who the user is."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lsv.settings import is_secret

HIDDEN = "***"

_TOKENS = re.compile(
    r"\b(?:hf|sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs])[-_][A-Za-z0-9_-]{8,}"
    r"|\bAKIA[A-Z0-9]{16}\b"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
    r"|(?<=[Bb]earer )\S+"
)
_ASSIGNED = re.compile(
    r"(?P<name>[\w-]*(?:api[_-]?key|token|secret|passw(?:or)?d|passphrase)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]+", re.I
)
_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")
_HOMES = re.compile(r"(?<![\w.])((?:/home|/Users|[A-Za-z]:\\Users)[/\\])[^/\\\s:\"']+")
_HOME_FOLDERS = ("home", "Users")
_SHORTEST = 4
"""Shorter secrets and names would be found in ordinary words."""


def hide(name: str, value: Any) -> Any:
    """The value of a setting or variable as it may be shown; switches and absent values are never secret."""
    if value is None or isinstance(value, bool) or value in ("", (), []):
        return value
    return HIDDEN if is_secret(name) else value


class Cleaner:
    """Cleans texts of everything that looks secret, of the ``known`` secrets, and of the names of user and host."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        home = Path.home()
        user = home.name if home.parent.name in _HOME_FOLDERS else ""
        literal = [part for part in {*known, user, socket.gethostname()} if len(part) >= _SHORTEST]
        found = "|".join(map(re.escape, sorted(literal, key=len, reverse=True)))
        self._literal = re.compile(rf"(?<![A-Za-z0-9])(?:{found})(?![A-Za-z0-9])") if literal else None

    def text(self, text: str) -> str:
        for pattern, instead in (
            (_HOMES, rf"\g<1>{HIDDEN}"),
            (_LOGIN, f"{HIDDEN}@"),
            (_TOKENS, HIDDEN),
            (_ASSIGNED, rf"\g<name>{HIDDEN}"),
        ):
            text = pattern.sub(instead, text)
        return text if self._literal is None else self._literal.sub(HIDDEN, text)

    def tree(self, value: Any) -> Any:
        """The same for every text in nested lists and mappings."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.tree(hide(str(key), one)) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(one) for one in value]
        return value
