"""Standing in for a vendor's library: a fake that knows its calls, remembers them, and refuses all others."""

from __future__ import annotations

from collections import Counter
from typing import Any


class UnknownCall(Exception):
    """A platform called something that its vendor's library does not have, or that the fake does not know."""


class StrictFake:
    """Base of fakes: public methods of a subclass are the calls it answers.

    ``calls`` counts them by name, ``log`` has them in order with their arguments. A call that the subclass does not
    have raises ``UnknownCall``, so that a platform proved against it uses nothing that is not there.
    """

    library: str = "the vendor's library"

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.log: list[tuple[str, tuple[Any, ...]]] = []

    def record(self, name: str, *arguments: Any) -> None:
        """Remember a call; methods of a subclass begin with it."""
        self.calls[name] += 1
        self.log.append((name, arguments))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownCall(f"the fake of {self.library} has no {name}")
