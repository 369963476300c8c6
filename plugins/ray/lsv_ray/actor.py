"""What Ray starts somewhere, as actors: the worker of a rank, and the engine of a replica. Each connects, by sockets of
its own, to those that have asked for it.
"""

from __future__ import annotations

import logging
import socket

import ray

from lsv.plugins.logs import record_calls_if_asked
from lsv.processes.nodes.handshake import introduce
from lsv.processes.nodes.reaching import prepare
from lsv.settings.host_ip import read_host_ip
from lsv_base.processes.outlet import unblock_output

_HELLO_SECONDS = 60.0


class Actor:
    """Ray only places it and tells of its end."""

    def where(self) -> tuple[str, str, list[str]]:
        """Ray's id of its machine, the machine's address, and the devices that are its own."""
        context = ray.get_runtime_context()
        devices = [device for some in context.get_accelerator_ids().values() for device in some]
        return context.get_node_id(), ray.util.get_node_ip_address(), devices


@ray.remote(max_restarts=0)
class RankActor(Actor):
    """Orders and reports are those of ``lsv_runtime.worker.channel``."""

    def serve(self, host: str, port: int, key: bytes, rank: int) -> int:
        """Connect to the executor, which has the same ``key``, and serve until it closes its end; the exit code as a
        process's.
        """
        from lsv_runtime.worker.remote import answer

        unblock_output()
        logging.basicConfig(level=logging.INFO)
        record_calls_if_asked()
        own = read_host_ip()
        end = socket.create_connection((host, port), _HELLO_SECONDS, (own, 0) if own else None)
        prepare(end)
        introduce(end, key, rank)
        return answer(end)


@ray.remote(max_restarts=0)
class ReplicaActor(Actor):
    """A machine with one replica, see ``lsv.engine.replicas.nodes``."""

    def serve(self, charge: bytes) -> bytes:
        """See ``lsv.engine.replicas.nodes.charge.run``."""
        from lsv.engine.replicas.nodes.charge import run

        return run(charge)
