"""Keeping the engines of all replicas alive, each by a supervisor of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lsv.config import EngineConfig
from lsv.engine.replicas.nodes.stand_in import StandIn
from lsv.engine.replicas.rhythm import make_pipes
from lsv.engine.supervision.gang import Gang
from lsv.engine.supervision.supervisor import STOP_SECONDS, RestartPolicy, Supervisor


def _no_restarts() -> RestartPolicy:
    return RestartPolicy(0, 1.0)


class Supervisors:
    """A supervisor for each of ``configs``, from ``start`` to ``stop``; for a replica on another machine a stand-in.

    Engines that share experts are a gang.
    """

    def __init__(
        self,
        configs: Sequence[EngineConfig],
        *,
        log_level: str = "INFO",
        restarts: Callable[[], RestartPolicy] = _no_restarts,
    ) -> None:
        """``restarts`` makes the policy of each."""
        size, sharing = len(configs), configs[0].topology.shares_experts
        gang = Gang(size, partial(make_pipes, replicas=size)) if sharing else None
        self.replicas: Sequence[Supervisor | StandIn] = [
            Supervisor(one, log_level=log_level, restarts=restarts(), gang=gang)
            if one.topology.is_local
            else StandIn(one.topology.replica)
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
