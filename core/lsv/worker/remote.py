"""A worker process: ``python -m lsv.worker.remote FD PARENT`` takes orders from the executor behind it."""

from __future__ import annotations

import logging
import signal
import sys
from functools import cache, partial

from lsv import plugins
from lsv.errors import EngineDied, LsvError
from lsv.processes.lifeline import connect, dump_stacks_on_request
from lsv.processes.wire import Channel, Failed
from lsv.scheduler.plan import Masks
from lsv.worker.channel import Alive, Loading, Masked, Order, Ran, Report, Run, Start, Started
from lsv.worker.worker import Worker

_log = logging.getLogger(__name__)


def main(descriptor: int, parent: int) -> int:
    """Serve until the executor closes its end; the exit code is 1 after a failure, reported before."""
    channel: Channel[Report | Failed, Order] = connect(descriptor, parent, Order)
    try:
        serve(channel)
    except LsvError as error:
        channel.send(Failed(error.record()))
        return 1
    except Exception as cause:
        _log.exception("the worker failed")
        died = EngineDied(f"{type(cause).__name__}: {cause}; the log has the traceback")
        channel.send(Failed(died.record()))
        return 1
    return 0


def serve(channel: Channel[Report | Failed, Order]) -> None:
    """Start as told, then run plans. Rank 0 answers each; the others only report failure."""
    start = channel.receive()
    assert isinstance(start, Start), "the first order must be Start"
    logging.basicConfig(level=logging.INFO, format=f"%(levelname)s rank {start.rank} %(name)s: %(message)s")
    catalog = plugins.load(start.config.plugins).catalog
    worker = Worker(start.config, catalog, rank=start.rank, address=start.address)
    fit = worker.start(lambda stage, done, total: channel.send(Loading(stage, done, total)))
    channel.send(Started(fit))
    while True:
        if worker.in_flight == start.config.in_flight or (worker.in_flight and not channel.ready):
            result = worker.finish()
            if start.rank == 0:
                channel.send(Ran(result))
            continue
        try:
            order = channel.receive(start.config.beat_interval)
        except TimeoutError:
            channel.send(Alive())
            continue
        except EOFError:
            break
        assert isinstance(order, Run), "a started worker takes plans only"
        if order.plan.masked:
            masks = cache(partial(_receive_masks, channel))
            worker.launch(order.plan, masks)
            masks()  # they come in any case, and what follows them is an order again
        else:
            worker.launch(order.plan)
    worker.close()


def _receive_masks(channel: Channel[Report | Failed, Order]) -> Masks:
    order = channel.receive()
    assert isinstance(order, Masked), "the masks of a plan follow it"
    return order.masks


if __name__ == "__main__":
    dump_stacks_on_request()
    # interrupts are for the executor, which then closes the channel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
