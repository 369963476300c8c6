"""The parts of an engine, and which of them it asks when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lsv.engine.parts.part import Part, overriding
from lsv.request.group import RequestGroup


class Parts:
    """Asks the parts that have an answer of their own. The tuples hold those that override a method, in order."""

    def __init__(self, parts: Sequence[Part]) -> None:
        names = [part.name for part in parts]
        assert len(set(names)) == len(names), f"two parts have one name: {sorted(names)}"
        self.all = tuple(parts)
        self.releasing = overriding(parts, "ready")
        self.stepping = overriding(parts, "before_step")
        self.closing = overriding(parts, "close")
        self._opening = overriding(parts, "open")
        self._busy = overriding(parts, "busy")
        self._counting = overriding(parts, "counters")

    def open(self, group: RequestGroup) -> None:
        """Note in ``group.needs`` which parts let the group wait. Raises what a part refuses it with."""
        for part in self._opening:
            if part.open(group):
                group.needs.add(part.name)

    @property
    def busy(self) -> bool:
        return any(part.busy for part in self._busy)

    def counters(self) -> Mapping[str, float]:
        """The totals of all parts: ``quota_held`` is ``held`` of the part ``quota``."""
        return {f"{part.name}_{name}": value for part in self._counting for name, value in part.counters().items()}
