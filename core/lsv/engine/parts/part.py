"""What takes part in an engine beside its scheduler and its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from lsv.config import EngineConfig, Fit
from lsv.engine.messages import EngineMessage, Stats
from lsv.engine.orders.order import Handlers, Order
from lsv.kv.manager import KVManager
from lsv.plugins.catalog import Catalog
from lsv.request.group import RequestGroup
from lsv.request.request import Request
from lsv.scheduler.outcome import Outcome
from lsv.scheduler.plan import AwaitMasks, Masks
from lsv.scheduler.plan_builder import GuidedRow
from lsv.scheduler.scheduler import Scheduler
from lsv.transports.exchange import Exchange
from lsv_base.errors import LsvError
from lsv_base.processes.orders import WorkerOrder


class Host(Protocol):
    """The engine as its parts see it. ``scheduler``, ``kv`` and ``exchange`` exist once the model is loaded."""

    config: EngineConfig
    """Settings of plugins are its ``options``."""

    now: Callable[[], float]
    """Seconds, as the engine counts them."""

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def kv(self) -> KVManager: ...

    @property
    def exchange(self) -> Exchange | None:
        """What other engines fetch from and put into; None where none do."""

    def control(self, order: WorkerOrder) -> Sequence[Mapping[str, float]]:
        """Have every worker carry out an order once nothing is in flight; returns the ranks' answers.

        Raises what refuses the order.
        """

    def refuse_all(self, error: LsvError) -> None:
        """End all requests with an error."""

    def save_cached(self) -> None:
        """Step until host memory and stores have what is to be copied to them."""

    def forget_cached(self, *, host: bool) -> None:
        """Empty the books of what workers cache, and with ``host`` of what host memory caches. No request may be open.

        Calls ``interrupt`` of every part first.
        """

    def note_computed(self, group: int, tokens: int) -> None:
        """Tell the owner of a request that so many tokens were computed for it, though its answers have not grown."""


class PartContext(NamedTuple):
    """What a part is made from."""

    config: EngineConfig
    """Settings of plugins are its ``options``."""

    now: Callable[[], float]
    """Seconds, as the engine counts them."""

    engine: Host

    catalog: Catalog
    """What plugins offer."""


class Part:
    """Takes part in an engine: holds requests back, follows answers, acts between steps, carries out orders, counts.

    The engine asks each part at the points below. Every method has a default that does nothing. The engine collects
    once which parts override a method, so that a part costs nothing where it does nothing. All calls come from the
    engine's thread, between steps; a part that blocks there blocks every request. An unexpected error in ``open`` fails
    that request, and in any other method it ends the engine.
    """

    name: ClassVar[str]
    """What its requests wait for, such as ``"adapter"``. No two parts have the same."""

    orders: Handlers = {}
    """The orders that it adds to the engine, see ``lsv.engine.orders.order``."""

    sockets: Mapping[int, Callable[[], None]] = {}
    """By file descriptor, what the engine calls once the descriptor is readable. Read when the engine is made."""

    # The engine

    def start(self, fit: Fit) -> None:
        """The model is loaded, and no request has come yet. No request exceeds ``fit.max_model_len`` tokens.

        Raises ``StartError``.
        """

    def stop(self) -> None:
        """The engine ends. May come before ``start``."""

    def check_order(self, order: Order) -> None:
        """An order has come. Raises the ``LsvError`` that refuses it."""

    def interrupt(self) -> None:
        """The workers are about to give their memory back. End what the part has them do."""

    def notice(self) -> EngineMessage | None:
        """What clients must know of the part. Each gets it when it connects, and again whenever it changes.

        It is asked for often, also before ``start``: clients assume what it is then.
        """
        return None

    def counters(self) -> Mapping[str, float]:
        """Totals since the start, by name: ``{"held": 3}`` of the part ``quota`` is the metric
        ``lsv:quota_held_total``.
        """
        return {}

    def complete(self, stats: Stats) -> Stats:
        """The engine's figures with fields that only the part can fill in. Most parts have ``counters`` instead."""
        return stats

    # Requests

    def open(self, group: RequestGroup) -> bool:
        """A request group is about to be queued. Returns whether it waits until ``ready`` yields it.

        The parts are asked in order; ``group.needs`` has the names of those before this one that let it wait. Raises
        the ``LsvError`` that the group is refused with; ``close`` follows then, too.
        """
        return False

    def replace(self, group: RequestGroup) -> RequestGroup:
        """What is queued in place of a group that every part has opened. Beam search queues its first round here.

        Raises like ``open``.
        """
        return group

    @property
    def busy(self) -> bool:
        """Whether ``ready`` has something to do, even if no request is under way."""
        return False

    def wait(self, seconds: float) -> None:
        """The engine has nothing to do but to wait: return when ``ready`` or ``resume`` may have something.

        Returns after ``seconds`` at the latest, and at once if the part expects nothing.
        """

    def ready(self) -> Iterable[tuple[int, LsvError | None]]:
        """The groups, by id, that need not wait any longer, each with the error that refuses it or None.

        Asked before each step. A group that has ended meanwhile may be among them.
        """
        return ()

    def close(self, group: int) -> None:
        """A group has ended, or was refused before it was queued."""

    # Answers

    def follows(self, group: RequestGroup) -> bool:
        """Whether ``follow``, ``explain`` and ``drop`` are called for the sequences of a group that was just opened."""
        return True

    def follow(self, outcome: Outcome) -> Iterable[Outcome]:
        """News of a sequence. Returns what its owner hears instead, which may be nothing yet.

        The part may hold, cut, release or end the sequence through the scheduler.
        """
        return (outcome,)

    def resume(self) -> Iterable[Outcome]:
        """The ends of sequences that the scheduler held for the part. Asked before each step."""
        return ()

    def explain(self, request: Request) -> LsvError | None:
        """Why a sequence that has failed did so, if the part knows better than the outcome."""
        return None

    def drop(self, request: Request) -> None:
        """A sequence has ended."""

    # Steps

    @property
    def needs_step(self) -> bool:
        """Whether the engine must take a step even if no request needs one."""
        return False

    def before_step(self, step: int) -> None:
        """Step number ``step`` since the start is about to be given to the workers. Raises ``EngineDied``.

        Replicas that share experts ask before the same steps.
        """

    def mask(self, rows: Iterable[GuidedRow]) -> AwaitMasks:
        """Begin to compute the masks of a step's rows; calling the result waits for them. Only one part may do so."""
        return lambda: Masks((), b"")


P = TypeVar("P", bound=Part)


def overriding(parts: Iterable[P], method: str) -> tuple[P, ...]:
    """The parts that have a method of their own."""
    return tuple(part for part in parts if getattr(type(part), method) is not getattr(Part, method))
