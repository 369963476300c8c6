"""Keeping the engines of all replicas alive, each by a supervisor of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lsv.config import EngineConfig
from lsv.engine.replicas.nodes.contingent import Contingent
from lsv.engine.replicas.nodes.rendezvous import Spot
from lsv.engine.replicas.nodes.stand_in import StandIn
from lsv.engine.replicas.rhythm import Pipes
from lsv.engine.supervision.gang import Gang
from lsv.engine.supervision.supervisor import STOP_SECONDS, RestartPolicy, Supervisor


def _no_restarts() -> RestartPolicy:
    return RestartPolicy(0, 1.0)


class Supervisors:
    """A supervisor for each of ``configs``, from ``start`` to ``stop``; for a replica on another machine a stand-in.

    Engines that share experts are a ``gang``, those of a machine other than node 0 its ``contingent``.
    """

    def __init__(
        self,
        configs: Sequence[EngineConfig],
        *,
        log_level: str = "INFO",
        restarts: Callable[[], RestartPolicy] = _no_restarts,
    ) -> None:
        """``restarts`` makes the policy of each."""
        self.gang, self.contingent = _bind(configs[0])
        bond = self.gang or self.contingent
        self.replicas: Sequence[Supervisor | StandIn] = [
            Supervisor(one, log_level=log_level, restarts=restarts(), gang=bond)
            if one.topology.is_local
            else StandIn(one.topology.replica, self.gang)
            for one in configs
        ]

    @property
    def stand_ins(self) -> Sequence[StandIn]:
        """Those of replicas on other machines."""
        return [one for one in self.replicas if isinstance(one, StandIn)]

    @property
    def addresses(self) -> tuple[Path, ...]:
        """The sockets that clients connect to, one for each replica; the same after restarts."""
        return tuple(supervisor.address for supervisor in self.replicas)

    def start(self) -> None:
        """Returns at once."""
        for supervisor in self.replicas:
            supervisor.start()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """End all processes, by force after ``seconds``. May be called again."""
        ends = time.monotonic() + seconds
        for supervisor in self.replicas:
            supervisor.ask_to_stop()
        for supervisor in self.replicas:
            supervisor.stop(max(0.0, ends - time.monotonic()))


def _bind(config: EngineConfig) -> tuple[Gang | None, Contingent | None]:
    """What the engines of a server share, or those of a machine that serves nothing itself."""
    size, nodes = config.topology.data, config.replica_nodes
    if not config.topology.shares_experts:
        return None, None
    if nodes is None:
        return Gang(size, partial(Pipes, size)), None
    return (None, Contingent()) if nodes.headless else (Gang(size, Spot), None)
