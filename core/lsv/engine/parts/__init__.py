"""The parts of an engine, and which of them it asks when."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from lsv.engine.parts.part import Part, overriding
from lsv.errors import LsvError, PluginError, RequestFailed
from lsv.request.group import RequestGroup

log = logging.getLogger(__name__)


class Parts:
    """Asks the parts that have an answer of their own. The tuples hold those that override a method, in order."""

    def __init__(self, parts: Sequence[Part]) -> None:
        names = [part.name for part in parts]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise PluginError(f"two parts of the engine are called {', '.join(twice)}: leave one out with --no-plugin")
        self.all = tuple(parts)
        self.releasing = overriding(parts, "ready")
        self.stepping = overriding(parts, "before_step")
        self.closing = overriding(parts, "close")
        self._opening = overriding(parts, "open")
        self._busy = overriding(parts, "busy")
        self._counting = overriding(parts, "counters")

    def open(self, group: RequestGroup) -> None:
        """Note in ``group.needs`` which parts let the group wait.

        Raises what a part refuses it with, and ``RequestFailed`` if a part fails, so that others go on.
        """
        for part in self._opening:
            try:
                waits = part.open(group)
            except LsvError:
                raise
            except Exception as cause:
                log.exception("the part %s failed on a request", part.name)
                raise RequestFailed(f"the part {part.name} failed: {type(cause).__name__}: {cause}") from cause
            if waits:
                group.needs.add(part.name)

    @property
    def busy(self) -> bool:
        return any(part.busy for part in self._busy)

    def counters(self) -> Mapping[str, float]:
        """The totals of all parts: ``quota_held`` is ``held`` of the part ``quota``."""
        return {f"{part.name}_{name}": value for part in self._counting for name, value in part.counters().items()}
