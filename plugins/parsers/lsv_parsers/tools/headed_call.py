"""A name, a mark, and then the arguments as a JSON object: ``name[ARGS]{…}``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lsv_parsers.source import Reading, marks_of
from lsv_parsers.tools.call import Call
from lsv_parsers.values import copy_value

MAX_HEAD = 300
"""Characters before the arguments."""

Named = tuple[str, str | None]
"""A function's name, and the call's id where the head has one."""


def _plain(head: str) -> Named:
    return head.strip(), None


@dataclass(frozen=True)
class HeadedCall:
    """``ends`` are the marks that end the head, of which ``"{"`` belongs to the arguments already; ``fences`` may stand
    around the arguments."""

    ends: tuple[str, ...]
    name: Callable[[str], Named] = _plain
    fences: tuple[str, ...] = ()

    def read(self, call: Call) -> Reading[bool]:
        source = call.source
        found = yield from source.head(marks_of(*self.ends), MAX_HEAD)
        if found is None:
            return False
        head, mark = found
        name, id = self.name(head)
        if not call.may_be(name):
            return False
        source.take(0 if mark == "{" else len(mark))
        yield from self._fence(call)
        if (yield from source.peek()) != "{":
            return False
        call.begin(name, id)
        if not (yield from copy_value(source, call.arguments)):
            return False
        yield from self._fence(call)
        return True

    def _fence(self, call: Call) -> Reading[None]:
        yield from call.source.skip()
        for fence in self.fences:
            if (yield from call.source.comes(fence)):
                break
        yield from call.source.skip()
