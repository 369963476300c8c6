"""A machine other than the first: it joins the engine there, starts its ranks, and ends with it."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import msgspec

from lsv.config import EngineConfig, Nodes
from lsv.errors import EngineDied, StartError
from lsv.plugins.catalog import Catalog
from lsv.processes.folder import PrivateFolder
from lsv.processes.peer import Peer
from lsv.processes.process import Process
from lsv.resolve.hardware import load_platform
from lsv.settings import export
from lsv.settings.cluster_key import read_cluster_key
from lsv.version import __version__
from lsv.worker.nodes.handshake import JOINING, OtherKey, OtherProtocol, introduce
from lsv.worker.nodes.messages import Answer, Goodbye, Join, Welcome, name_checkpoint, prepare

log = logging.getLogger(__name__)

Delay = Callable[[float], float | None]
"""(now) -> seconds to wait before the engine is joined anew, None where it is not."""

_AGAIN_SECONDS = 0.5
_LOOK_SECONDS = 0.5
_GREETING_SECONDS = 10.0
_STOP_SECONDS = 5.0
"""What ranks get to end by themselves, and an engine to say why it has ended."""


def serve_node(config: EngineConfig, catalog: Catalog, delay: Delay) -> None:
    """Run this machine's ranks until the engine has ended as it was told to.

    Raises what the engine has ended with, ``StartError`` where it can't be joined, ``EngineDied`` when it is gone;
    after the latter it is joined anew while ``delay`` allows, though it may then wait in vain for another machine.
    """
    nodes = config.nodes
    assert nodes is not None, "a machine of several"
    export(load_platform(config.platform, catalog, emulate=config.emulate).environment(config.options))
    signal.signal(signal.SIGTERM, _interrupt)
    has_run = False
    while True:
        try:
            return _serve_once(config, nodes)
        except (EngineDied, StartError) as cause:
            has_run |= isinstance(cause, EngineDied)
            wait = delay(time.monotonic()) if has_run else None
            if wait is None:
                raise
            log.error("%s; joining again", cause.message)
            time.sleep(wait)


def _serve_once(config: EngineConfig, nodes: Nodes) -> None:
    key, workers = read_cluster_key(), list[Process]()
    engine: Peer[Join, Answer] = Peer(_reach(nodes, key, JOINING), Answer)
    with PrivateFolder() as folder:
        try:
            engine.send(
                Join(
                    __version__, nodes.number, nodes.count, msgspec.msgpack.encode(config),
                    name_checkpoint(Path(config.model)), str(folder.path / "rendezvous"),
                ),
                _GREETING_SECONDS,
            )  # fmt: skip
            log.info("node %d has found node 0 at %s:%d", nodes.number, nodes.address, nodes.port)
            _obey(engine, nodes, key, workers)
        except (EOFError, OSError) as cause:
            raise EngineDied(f"node 0 ({nodes.address}:{nodes.port}) is gone") from cause
        except BaseException:
            for worker in workers:
                worker.send_signal(signal.SIGKILL)
            raise
        finally:
            engine.channel.close()
            for worker in workers:
                worker.end(_STOP_SECONDS)


def _obey(engine: Peer[Join, Answer], nodes: Nodes, key: bytes, workers: list[Process]) -> None:
    """Do what the engine says until it says goodbye. A worker's end is its to tell of, within some seconds."""
    deadline = math.inf
    while True:
        try:
            answer = engine.receive(_LOOK_SECONDS)
        except TimeoutError:
            ended = next((worker for worker in workers if not worker.running), None)
            if ended is not None and time.monotonic() > deadline:
                raise EngineDied(f"a worker of this machine {ended.how_it_ended()}; the log says more") from None
            deadline = min(deadline, math.inf if ended is None else time.monotonic() + _STOP_SECONDS)
            continue
        if isinstance(answer, Goodbye):
            log.info("node 0 has ended")
            return
        assert isinstance(answer, Welcome)
        log.info("this machine has rank %s", ", ".join(map(str, answer.ranks)))
        workers += [_start(nodes, key, rank) for rank in answer.ranks]


def _start(nodes: Nodes, key: bytes, rank: int) -> Process:
    """A worker that takes its orders from node 0, by a connection made here."""
    with _reach(nodes, key, rank) as end:
        command = [sys.executable, "-m", "lsv.worker.remote", str(end.fileno()), str(os.getpid())]
        return Process(command, inherited=(end.fileno(),))


def _reach(nodes: Nodes, key: bytes, purpose: int) -> socket.socket:
    """A connection to node 0 whose both ends have shown that they have the key; tried again until it is there.

    Raises ``StartError``: late, of another secret, or something else that listens there.
    """
    where, deadline = f"{nodes.address}:{nodes.port}", time.monotonic() + nodes.patience
    if purpose == JOINING:
        log.info("node %d looks for node 0 at %s", nodes.number, where)
    while True:
        try:
            end = socket.create_connection((nodes.address, nodes.port), _GREETING_SECONDS)
            try:
                prepare(end)
                introduce(end, key, purpose)
            except BaseException:
                end.close()
                raise
            return end
        except OtherKey:
            raise StartError(f"node 0 at {where} has another LSV_CLUSTER_KEY: set the same on all machines") from None
        except OtherProtocol:
            raise StartError(
                f"what answers at {where} is no lsv engine that waits for its nodes: --master-addr and --master-port "
                "must be those of node 0"
            ) from None
        except OSError as cause:
            if time.monotonic() > deadline:
                raise StartError(
                    f"node 0 does not answer at {where} for {nodes.patience:g} s (node_timeout): {cause}; is it "
                    "started, is --master-addr its address, and does no firewall keep it from this machine?"
                ) from cause
            time.sleep(_AGAIN_SECONDS)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
