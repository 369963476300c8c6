"""How a family writes calls of tools."""

from __future__ import annotations

import msgspec


class CallForm(msgspec.Struct, frozen=True):
    """How calls are written whose arguments are JSON, so that a grammar can hold them to a schema."""

    open: str
    """What begins calls, and stands nowhere else in an answer."""
    close: str = ""
    """What ends them."""
    arguments: str = "arguments"
    """The key of the arguments in ``{"name": …, "arguments": …}``."""
    listed: bool = False
    """Whether it is a list of such objects; with a ``head``, whether it may be one."""
    head: str = ""
    """How the name stands before the arguments, if it does: ``functions.{name}:{index}<sep>``, the index a number."""
