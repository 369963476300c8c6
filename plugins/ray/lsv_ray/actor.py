"""The worker of a rank as a Ray actor: Ray starts it somewhere, and it takes orders through a socket of its own."""

from __future__ import annotations

import logging
import socket

import ray

from lsv.processes.nodes.handshake import introduce
from lsv.processes.nodes.reaching import prepare

_HELLO_SECONDS = 60.0


@ray.remote(max_restarts=0)
class RankActor:
    """Ray only places it and tells of its end: orders and reports are those of ``lsv.worker.channel``."""

    def where(self) -> tuple[str, str, list[str]]:
        """Ray's id of its machine, the machine's address, and the devices that are its own."""
        context = ray.get_runtime_context()
        devices = [device for some in context.get_accelerator_ids().values() for device in some]
        return context.get_node_id(), ray.util.get_node_ip_address(), devices

    def serve(self, host: str, port: int, key: bytes, rank: int) -> int:
        """Connect to the executor, which has the same ``key``, and serve until it closes its end; the exit code as a
        process's.
        """
        from lsv.worker.remote import answer

        logging.basicConfig(level=logging.INFO)
        end = socket.create_connection((host, port), _HELLO_SECONDS)
        prepare(end)
        introduce(end, key, rank)
        return answer(end)
