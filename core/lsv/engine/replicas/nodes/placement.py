"""The process that keeps replicas placed: ``python -m lsv.engine.replicas.nodes.placement FD PARENT``.

It is not the server's own, as libraries of clusters end a process whose cluster is lost.
"""

from __future__ import annotations

import logging
import queue
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from lsv import plugins
from lsv.config import EngineConfig
from lsv.engine.replicas.nodes.charge import Charge, read_end
from lsv.engine.replicas.nodes.placer import Place, Placer
from lsv.engine.supervision.supervisor import RestartPolicy
from lsv.offers import PlacerOffer
from lsv.plugins import logs
from lsv_base.errors import EngineDied, ErrorRecord, LsvError
from lsv_base.processes.lifeline import connect, dump_stacks_on_request
from lsv_base.processes.wire import Channel, Failed

log = logging.getLogger("lsv.engine.replicas.nodes.placement")

_LOOK_SECONDS = 0.2
_END_SECONDS = 5.0
_FORM = "%(levelname)s %(asctime)s placement %(name)s: %(message)s"


class Seek(msgspec.Struct, frozen=True, tag=True):
    """The first message: what room is wanted for."""

    config: EngineConfig
    log_level: str


class Here(msgspec.Struct, frozen=True, tag=True):
    """The answer: this machine, as others reach it."""

    address: str


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Node 0 can be joined: replicas are to be placed, each with this charge."""

    charge: Charge


class GivenUp(msgspec.Struct, frozen=True, tag=True):
    """There will be no other engine of a replica."""

    replica: int
    error: ErrorRecord


ToPlacement = Seek | Begin
FromPlacement = Here | GivenUp


class Placement:
    """Keeps each replica at a place, by a thread, until it has ended of itself or the server ends."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self.given_up: queue.SimpleQueue[GivenUp] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ending = threading.Event()

    def start(self, places: Sequence[Place]) -> None:
        """Returns at once."""
        for each in enumerate(places):
            self._threads.append(threading.Thread(target=self._keep, args=each, daemon=True))
            self._threads[-1].start()

    def end(self) -> None:
        """Look for no other places, and wait a moment for engines to end, which their own connections tell to."""
        self._ending.set()
        ends = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))

    def _keep(self, replica: int, place: Place) -> None:
        """An engine ends of itself when it is past its own restarts. One whose place is lost, or that was told to end
        there, gets another place, within the same limit.
        """
        policy = RestartPolicy(*self._charge.restarts)
        try:
            while True:
                log.info("replica %d is%s", replica, place)
                why = self._serve(replica, place)
                if self._ending.is_set():
                    return
                delay = None if isinstance(why, ErrorRecord) else policy.delay(time.monotonic())
                if delay is None:
                    break
                log.error("replica %d: %s; another place is looked for in %g s", replica, why, delay)
                if self._ending.wait(delay):
                    return
                place.move()
        except Exception as cause:
            log.exception("replica %d can't be placed", replica)
            why = cause if isinstance(cause, LsvError) else EngineDied(f"replica {replica} can't be placed: {cause!r}")
        self.given_up.put(GivenUp(replica, why if isinstance(why, ErrorRecord) else why.record()))

    def _serve(self, replica: int, place: Place) -> ErrorRecord | LsvError:
        """What the engine has ended of, or why it is not at its place any more."""
        config = self._charge.config
        number, count = place.share
        # as if those that share the machine were its neighbours by number
        topology = msgspec.structs.replace(config.topology, replica=replica, local=(replica - number, count))
        charge = msgspec.structs.replace(self._charge, config=msgspec.structs.replace(config, topology=topology))
        try:
            end = read_end(place.serve(msgspec.msgpack.encode(charge)))
        except EngineDied as lost:
            return lost
        return end or EngineDied(f"the engine{place} was told to end there")


def main(descriptor: int, parent: int) -> int:
    """Place replicas until the server ends; exit codes as an engine's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server gets it, too
    dump_stacks_on_request()
    channel: Channel[FromPlacement | Failed, ToPlacement] = connect(descriptor, parent, ToPlacement)
    try:
        seek = channel.receive()
        assert isinstance(seek, Seek), "the first message must be Seek"
        logs.set_up(_FORM, seek.log_level, plugins.packages())
        catalog = plugins.load(seek.config.plugins).catalog
        nodes = seek.config.replica_nodes
        assert nodes is not None, "replicas that somebody places"
        placer: Placer = catalog.load(catalog.find(PlacerOffer, nodes.placer))(seek.config, catalog)
        try:
            _place_all(channel, placer)
        finally:
            placer.leave()
    except EOFError:
        return 0  # the server has ended
    except LsvError as error:
        channel.send(Failed(error.record()))
        return error.exit_code


def _place_all(channel: Channel[Any, Any], placer: Placer) -> NoReturn:
    """Raises ``EOFError`` when the server has ended."""
    channel.send(Here(placer.join()))
    begin = channel.receive()
    assert isinstance(begin, Begin), "the second message must be Begin"
    placement = Placement(begin.charge)
    placement.start(placer.find())
    try:
        while True:
            with suppress(TimeoutError):
                channel.receive(_LOOK_SECONDS)
            while not placement.given_up.empty():
                channel.send(placement.given_up.get())
    finally:
        placement.end()


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
