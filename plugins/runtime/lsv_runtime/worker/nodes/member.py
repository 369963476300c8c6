"""A machine other than the first: it joins the engine of its ranks there, starts these, and ends with it."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from types import FrameType

from lsv.config import EngineConfig, Nodes
from lsv.plugins.catalog import Catalog
from lsv.processes.nodes.handshake import JOINING
from lsv.processes.nodes.newcomer import describe
from lsv.processes.nodes.reaching import GREETING_SECONDS, Delay, Way, keep_joining, reach
from lsv.resolve.hardware import load_platform
from lsv.settings import export
from lsv.settings.cluster_key import read_cluster_key
from lsv_base.errors import EngineDied
from lsv_base.processes.folder import PrivateFolder
from lsv_base.processes.peer import Peer
from lsv_base.processes.process import Process
from lsv_runtime.worker.nodes.messages import Answer, Goodbye, Join, Welcome

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_STOP_SECONDS = 5.0
"""What ranks get to end by themselves, and an engine to say why it has ended."""


def serve_node(config: EngineConfig, catalog: Catalog, delay: Delay) -> None:
    """Run this machine's ranks until the engine has ended as it was told to; see ``keep_joining``."""
    nodes = config.nodes
    assert nodes is not None, "a machine of several"
    export(load_platform(config.platform, catalog, emulate=config.emulate).environment(config.options))
    signal.signal(signal.SIGTERM, _interrupt)
    keep_joining(lambda: _serve_once(config, nodes), delay)


def _serve_once(config: EngineConfig, nodes: Nodes) -> None:
    key, workers = read_cluster_key(), list[Process]()
    port = nodes.port_of(config.topology)
    way = Way(nodes.address, port, nodes.patience, "--master-addr and --master-port")
    engine: Peer[Join, Answer] = Peer(reach(way, key, JOINING), Answer)
    with PrivateFolder() as folder:
        try:
            nearby = str(folder.path / "rendezvous")
            join = Join(**describe(config), number=nodes.number, count=nodes.count, nearby=nearby)
            engine.send(join, GREETING_SECONDS)
            log.info("node %d has found node 0 at %s", nodes.number, way)
            _obey(engine, way, key, workers)
        except (EOFError, OSError) as cause:
            raise EngineDied(f"node 0 ({way}) is gone") from cause
        except BaseException:
            for worker in workers:
                worker.send_signal(signal.SIGKILL)
            raise
        finally:
            engine.channel.close()
            for worker in workers:
                worker.end(_STOP_SECONDS)


def _obey(engine: Peer[Join, Answer], way: Way, key: bytes, workers: list[Process]) -> None:
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
        workers += [_start(way, key, rank) for rank in answer.ranks]


def _start(way: Way, key: bytes, rank: int) -> Process:
    """A worker that takes its orders from node 0, by a connection made here."""
    with reach(way, key, rank) as end:
        command = [sys.executable, "-m", "lsv_runtime.worker.remote", str(end.fileno()), str(os.getpid())]
        return Process(command, inherited=(end.fileno(),))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
