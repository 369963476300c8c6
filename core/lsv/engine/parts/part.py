"""What takes part in an engine beside its scheduler and its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeVar

from lsv.config import EngineConfig, Fit
from lsv.engine.orders.order import Handlers
from lsv.errors import LsvError
from lsv.processes.orders import WorkerOrder
from lsv.request.group import RequestGroup


class PartContext(NamedTuple):
    """What a part gets of the engine that it takes part in."""

    config: EngineConfig
    """Settings of plugins are its ``options``."""

    control: Callable[[WorkerOrder], Sequence[Mapping[str, float]]]
    """Carries out an order on every worker once nothing is in flight; returns the ranks' answers."""

    now: Callable[[], float]
    """Seconds, as the engine counts them."""


class Part:
    """Takes part in an engine: holds requests back, refuses them, acts between steps, carries out orders, counts.

    The engine asks each part at the points below. Every method has a default that does nothing. The engine collects
    once which parts override a method, so that a part costs nothing where it does nothing. All calls come from the
    engine's thread, between steps; a part that blocks there blocks every request. An unexpected error in ``open`` fails
    that request, and in any other method it ends the engine.
    """

    name: ClassVar[str]
    """What its requests wait for, such as ``"adapter"``. No two parts have the same."""

    orders: Handlers = {}
    """The orders that it adds to the engine, see ``lsv.engine.orders.order``."""

    def start(self, fit: Fit) -> None:
        """The model is loaded, and no request has come yet. Raises ``StartError``."""

    def open(self, group: RequestGroup) -> bool:
        """A request group is about to be queued. Returns whether it waits until ``ready`` yields it.

        The parts are asked in order; ``group.needs`` has the names of those before this one that let it wait. Raises
        the ``LsvError`` that the group is refused with; ``close`` follows then, too.
        """
        return False

    @property
    def busy(self) -> bool:
        """Whether ``ready`` has something to do, even if no request is under way."""
        return False

    def ready(self) -> Iterable[tuple[int, LsvError | None]]:
        """The groups, by id, that need not wait any longer, each with the error that refuses it or None.

        Asked before each step. A group that has ended meanwhile may be among them.
        """
        return ()

    def before_step(self, step: int) -> None:
        """Step number ``step`` since the start is about to be given to the workers. Raises ``EngineDied``.

        Replicas that share experts ask before the same steps.
        """

    def close(self, group: int) -> None:
        """A group has ended, or was refused before it was queued."""

    def counters(self) -> Mapping[str, float]:
        """Totals since the start, by name: ``{"held": 3}`` of the part ``quota`` is the metric
        ``lsv:quota_held_total``.
        """
        return {}

    def stop(self) -> None:
        """The engine ends. May come before ``start``."""


P = TypeVar("P", bound=Part)


def overriding(parts: Iterable[P], method: str) -> tuple[P, ...]:
    """The parts that have a method of their own."""
    return tuple(part for part in parts if getattr(type(part), method) is not getattr(Part, method))
