"""A worker process: ``python -m lsv_runtime.worker.remote FD PARENT`` takes orders from the executor behind it."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from lsv import plugins
from lsv.plugins.logs import record_calls_if_asked
from lsv.scheduler.plan import Masks
from lsv_base.errors import EngineDied, LsvError
from lsv_base.processes.lifeline import connect, dump_stacks_on_request
from lsv_base.processes.wire import Channel, Failed
from lsv_runtime.worker.channel import (
    Alive,
    Control,
    Controlled,
    Encoded,
    Loading,
    Masked,
    Order,
    Ran,
    Report,
    Run,
    Sampled,
    Start,
    Started,
)

if TYPE_CHECKING:
    from lsv_runtime.worker.worker import Worker

_log = logging.getLogger(__name__)


def main(descriptor: int, parent: int) -> int:
    """Serve the process that has made this one, and end with it; otherwise as ``answer``."""
    gc.disable()  # imports and the start create long-lived objects, which collections would trace again and again
    return _answer(connect(descriptor, parent, Order), _trace_new_objects)


def answer(end: socket.socket) -> int:
    """Serve until the executor closes its end; the exit code is 1 after a failure, reported before."""
    return _answer(Channel(end, Order))


def _answer(channel: Channel[Report | Failed, Order], started: Callable[[], object] = lambda: None) -> int:
    try:
        _serve(channel, started)
    except LsvError as error:
        channel.send(Failed(error.record()))
        return 1
    except Exception as cause:
        _log.exception("the worker failed")
        died = EngineDied(f"{type(cause).__name__}: {cause}; the log has the traceback")
        channel.send(Failed(died.record()))
        return 1
    return 0


def _trace_new_objects() -> None:
    """Collect garbage from now on, but only among objects created from now on."""
    gc.freeze()
    gc.enable()


def _serve(channel: Channel[Report | Failed, Order], started: Callable[[], object]) -> None:
    """Start, then run plans. One rank answers each plan (``Topology.reporter``); the others only report failures.

    Calls ``started`` between the two.
    """
    from lsv_runtime.worker.worker import Worker

    start = channel.receive()
    assert isinstance(start, Start), "the first order must be Start"
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s rank {start.rank} %(name)s: %(message)s")
    record_calls_if_asked()
    ranks = start.config.topology.ranks
    number, here = start.place or (start.rank, ranks)
    _log.info("rank %d of %d, the %d. of %d here; they meet at %s", start.rank, ranks, number + 1, here, start.address)
    catalog = plugins.load(start.config.plugins).catalog
    worker = Worker(
        start.config, catalog, rank=start.rank, address=start.address, place=start.place, nearby=start.nearby
    )
    fit = worker.start(lambda stage, done, total: channel.send(Loading(stage, done, total)))
    started()
    channel.send(Started(fit))
    # Between stages the rows of the next step are others: nothing is gained by launching it before this one is told.
    most = start.config.in_flight if start.config.topology.pipeline == 1 else 1
    while True:
        if worker.in_flight == most or (worker.in_flight and not channel.ready):
            result = worker.finish()
            if start.rank == start.config.topology.reporter:
                channel.send(Ran(result))
            continue
        try:
            order = channel.receive(start.config.beat_interval)
        except TimeoutError:
            channel.send(Alive())
            continue
        except EOFError:
            break
        if isinstance(order, Sampled):
            worker.learn(order.tokens, order.drafts)
            continue
        if isinstance(order, Control):
            channel.send(_control(worker, order))
            continue
        assert isinstance(order, Run), "a started worker takes plans only"
        if order.plan.masked:
            masks = cache(partial(_receive_masks, channel))
            worker.launch(order.plan, masks)
            masks()  # they come in any case, and what follows them is an order again
        else:
            worker.launch(order.plan)
        if start.rank == 0 and order.plan.encode and start.config.topology.pipeline > 1:
            channel.send(Encoded(worker.unencoded))
    worker.close()


def _control(worker: Worker, order: Control) -> Controlled:
    try:
        return Controlled(answer=worker.control(worker.orders.read(order.order, order.body)))
    except LsvError as error:
        return Controlled(error.record())


def _receive_masks(channel: Channel[Report | Failed, Order]) -> Masks:
    order = channel.receive()
    assert isinstance(order, Masked), "the masks of a plan follow it"
    return order.masks


if __name__ == "__main__":
    dump_stacks_on_request()
    # interrupts are for the executor, which then closes the channel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
