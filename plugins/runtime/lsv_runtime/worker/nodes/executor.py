"""The executor whose ranks are on several machines, which were started with its own."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from lsv.config import EngineConfig
from lsv.plugins.catalog import Catalog
from lsv.settings.cluster_key import read_cluster_key
from lsv_base.errors import LsvError
from lsv_base.processes.folder import PrivateFolder
from lsv_runtime.devices.collectives import serve_store
from lsv_runtime.worker.channel import Start
from lsv_runtime.worker.nodes.gathering import Gathering, Member, dismiss_all
from lsv_runtime.worker.nodes.shared_store import SharedStore
from lsv_runtime.worker.processes import Rank, RankLink, RanksExecutor

log = logging.getLogger(__name__)


class NodesExecutor(RanksExecutor):
    """Node 0 has the first ranks of the first replica, as processes; others join, start theirs and are told of the end
    of their engine.
    """

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog)
        self._members: dict[int, Member] = {}
        self._folder: PrivateFolder | None = None
        self._store: Any = None
        self._shared: SharedStore | None = None

    def launch(self, config: EngineConfig) -> Iterator[RankLink]:
        """Raises ``StartError`` for machines that do not come, and for those that do not fit."""
        nodes = config.nodes
        assert nodes is not None, "the executor nodes is chosen for several machines"
        gathering = Gathering(config, nodes, read_cluster_key(), self.progress)
        self._members = gathering.members
        topology = config.topology
        try:
            if topology.shares_experts:
                self._shared = SharedStore(config, gathering.host)
                topology = msgspec.structs.replace(topology, meeting=self._shared.address)
            gathering.await_members()
            ends = gathering.await_ranks()
            host = gathering.host
        finally:
            gathering.close()
        self._folder = PrivateFolder()
        self._store, address = serve_store(host)
        for number in nodes.of_replica(topology):
            ranks = nodes.ranks(topology, number)
            for rank in ranks:
                place = (rank - ranks.start, len(ranks))
                if number == nodes.number:
                    here = msgspec.structs.replace(config, topology=topology)
                    yield Rank(Start(here, rank, address, place, str(self._folder.path / "rendezvous")))
                else:
                    member = self._members[number]
                    there = msgspec.structs.replace(member.config, topology=topology)
                    yield _begin(ends[rank], member, Start(there, rank, address, place, member.joined.nearby))

    @contextmanager
    def _one_fate(self) -> Iterator[None]:
        with super()._one_fate():
            try:
                yield
            except LsvError as error:
                dismiss_all(self._members, error)
                raise

    def stop(self) -> None:
        dismiss_all(self._members)
        super().stop()
        if self._folder is not None:
            self._folder.remove()
        self._folder = self._store = self._shared = None


def _begin(end: socket.socket, member: Member, start: Start) -> RankLink:
    """The worker of a rank on another machine, told what it is."""
    link = RankLink(start.rank, end, str(member))
    link.send(start)
    return link
