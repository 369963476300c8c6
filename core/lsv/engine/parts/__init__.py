"""The parts of an engine, and which of them it asks when."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

from lsv.engine.messages import EngineMessage, Stats
from lsv.engine.orders.order import Order
from lsv.engine.parts.part import Part, overriding
from lsv.request.group import RequestGroup
from lsv.request.spec import RequestSpec
from lsv_base.errors import BadRequest, LsvError, PluginError, RequestFailed

log = logging.getLogger(__name__)


class Parts:
    """Asks the parts that have an answer of their own. The tuples hold those that override a method, in order."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._names = {part.name for part in parts}
        if len(self._names) < len(parts):
            names = [part.name for part in parts]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise PluginError(f"two parts of the engine are called {', '.join(twice)}: leave one out with --no-plugin")
        self.all = tuple(parts)
        self.releasing = overriding(parts, "ready")
        self.resuming = overriding(parts, "resume")
        self.waiting = overriding(parts, "wait")
        self.pacing = overriding(parts, "needs_step")
        self.stepping = overriding(parts, "before_step")
        self.interrupted = overriding(parts, "interrupt")
        self.masking = _only(overriding(parts, "mask"))
        self._closing = overriding(parts, "close")
        self._opening = overriding(parts, "open")
        self._replacing = overriding(parts, "replace")
        self._following = overriding(parts, "follow")
        self._checking = overriding(parts, "check_order")
        self._noticed = overriding(parts, "notice")
        self._busy = overriding(parts, "busy")
        self._counting = overriding(parts, "counters")
        self._completing = overriding(parts, "complete")

    def open(self, group: RequestGroup) -> RequestGroup:
        """Note in ``group.needs`` which parts let the group wait, and return what is queued in its place.

        Raises what a part refuses it with, ``BadRequest`` if a part is missing that it can't do without, and
        ``RequestFailed`` if a part fails, so that others go on.
        """
        for name, param in _required(group.spec):
            if name not in self._names:
                raise BadRequest(f"{param}: this engine was started without the part {name!r}", param=param)
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
        for part in self._replacing:
            group = part.replace(group)
        return group

    def followers(self, group: RequestGroup) -> tuple[Part, ...]:
        """The parts that follow the sequences of a group."""
        return tuple(part for part in self._following if part.follows(group))

    def close(self, group: int) -> None:
        """A group has ended, or was refused."""
        for part in self._closing:
            part.close(group)

    def check_order(self, order: Order) -> None:
        """Raises what refuses an order."""
        for part in self._checking:
            part.check_order(order)

    @property
    def busy(self) -> bool:
        return any(part.busy for part in self._busy)

    @property
    def notices(self) -> tuple[EngineMessage, ...]:
        """What all clients must know."""
        return tuple(notice for part in self._noticed if (notice := part.notice()) is not None)

    @property
    def counters(self) -> Mapping[str, float]:
        """The totals of all parts: ``quota_held`` is ``held`` of the part ``quota``."""
        return {f"{part.name}_{name}": value for part in self._counting for name, value in part.counters().items()}

    def complete(self, stats: Stats) -> Stats:
        """The engine's figures with those that parts fill in."""
        for part in self._completing:
            stats = part.complete(stats)
        return stats


def _only(masking: Sequence[Part]) -> Part | None:
    if len(masking) > 1:
        names = " and ".join(part.name for part in masking)
        raise PluginError(f"the parts {names} both mask tokens: leave one out with --no-plugin")
    return masking[0] if masking else None


def _required(spec: RequestSpec) -> Iterator[tuple[str, str]]:
    """The parts that a request can't do without, each with the parameter that asks for it."""
    if spec.adapter:
        yield "adapter", "model"
    if spec.guided:
        yield "grammar", "structured_outputs"
    if spec.searched:
        yield "beams", "use_beam_search"
    if spec.kv_peer:
        yield "kv", "kv_transfer_params"
