"""One call on its way from a form to the parts of an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from lsv_parsers.parts import Parts
from lsv_parsers.source import Reading, Source

_NAME = re.compile(r"[^\s<>{}()\[\]\"'`]{1,256}")


class Call:
    """What a form writes a call to. From ``begin`` on it is one; before, what was read may still become text."""

    def __init__(
        self, source: Source, parts: Parts, tools: Mapping[str, Mapping[str, Any]], *, known_only: bool
    ) -> None:
        self.source = source
        self.tools = tools
        self.begun = False
        self._parts = parts
        self._known_only = known_only

    def may_be(self, name: str) -> bool:
        """Whether a name can be a function's. Without marks around, only the names of tools are told from text."""
        return name in self.tools if self._known_only else _NAME.fullmatch(name) is not None

    def begin(self, name: str, id: str | None = None) -> None:
        self.source.recorded()
        self.begun = True
        self._parts.begin(name, id)

    def open(self, name: str) -> None:
        """Begin a call whose arguments are written one by one, unless it has begun."""
        if not self.begun:
            self.begin(name)
            self.arguments("{")

    def arguments(self, text: str) -> None:
        self._parts.arguments(text)


class CallForm(Protocol):
    """The form of a single call."""

    def read(self, call: Call) -> Reading[bool]:
        """Read a call from where the source stands; False where it is none, or stops being one."""
        ...
