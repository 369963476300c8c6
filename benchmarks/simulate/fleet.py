"""Servers with their replicas: where requests go, which replicas fail, and how many servers there are."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from lsv.engine.replicas.replica import Replica, Visit
from lsv.engine.replicas.router import Load as Busy
from lsv.engine.replicas.router import Router
from simulate.clock import Clock
from simulate.engine import Job, Record, SimulatedEngine
from simulate.steps import StepTimes

BALANCERS = ("turns", "least", "sticky")
"""How requests are spread over servers: one after another, to the one with the fewest, by user."""


@dataclass(frozen=True)
class Shape:
    """``replicas`` are those at the beginning."""

    replicas: int = 1
    per_server: int = 0
    """Replicas of a server (``-dp``), which routes by prefix among them; 0 for all in one."""
    balancer: str = "least"
    routes: bool = True
    """Whether servers do; if not, their replicas take turns."""
    lives: float = 0.0
    """Mean seconds until a replica fails; 0 for never."""


class TakingTurns(Router):
    """One after the other, whatever they hold."""

    def choose(self, loads: Mapping[int, Busy]) -> int:
        return super().choose(dict.fromkeys(loads, Busy()))


class Server:
    """Replicas behind one front."""

    def __init__(self, engines: list[SimulatedEngine], router: Router) -> None:
        self.engines = engines
        self.drains = False
        self._replicas = [Replica(number, engine) for number, engine in enumerate(engines)]  # type: ignore[arg-type]
        self._router = router

    @property
    def is_ready(self) -> bool:
        return not self.drains and any(engine.state == "ready" for engine in self.engines)

    @property
    def open(self) -> int:
        return sum(engine.running + engine.waiting for engine in self.engines)

    @property
    def waiting(self) -> int:
        return sum(engine.waiting for engine in self.engines)

    def submit(self, job: Job) -> None:
        chains = (job.chain,)
        loads = {one.number: one.load(chains) for one in self._replicas if one.is_ready}
        replica = self._replicas[self._router.choose(loads)]
        visiting = replica.visit(job, chains)  # type: ignore[arg-type]
        job.begun = visiting.__enter__().begin
        job.ended = partial(_leave, visiting, job.ended)
        self.engines[replica.number].submit(job)

    def fail(self, engine: SimulatedEngine) -> list[Job]:
        """The requests that it takes along."""
        lost = engine.die()
        self._replicas[self.engines.index(engine)].renew()
        return lost


def _leave(visiting: AbstractContextManager[Visit], ended: Callable[[bool], None], lost: bool) -> None:
    visiting.__exit__(None, None, None)
    ended(lost)


class Fleet:
    """All servers. ``record`` gets what becomes of requests."""

    def __init__(
        self, clock: Clock, times: StepTimes, shape: Shape, record: Record, seed: str = "", *, bulk: bool = True
    ) -> None:
        self._clock, self._times, self._shape, self._record, self._bulk = clock, times, shape, record, bulk
        self._random = random.Random(f"{seed} failures")
        self._turn = 0
        self._counted = 0.0
        self.per_server = shape.per_server or shape.replicas
        self.servers: list[Server] = []
        for _ in range(-(-shape.replicas // self.per_server)):
            self.add(0.0)

    def submit(self, job: Job) -> None:
        ready = [server for server in self.servers if server.is_ready]
        if ready:
            self._choose(ready, job).submit(job)
        else:
            self._record.figures.refused += 1
            job.ended(True)

    def _choose(self, ready: list[Server], job: Job) -> Server:
        if len(ready) == 1:
            return ready[0]
        if self._shape.balancer == "sticky":
            return ready[job.user % len(ready)]
        self._turn += 1
        if self._shape.balancer == "turns":
            return ready[self._turn % len(ready)]
        return min(ready, key=lambda server: server.open)

    # How many there are

    def add(self, load: float) -> None:
        """A server that is ready after so many seconds."""
        self.count()
        engines = [
            SimulatedEngine(self._clock, self._times, self._record, bulk=self._bulk) for _ in range(self.per_server)
        ]
        self.servers.append(Server(engines, Router() if self._shape.routes else TakingTurns()))
        for engine in engines:
            engine.state = "loading"
            self._return(self.servers[-1], engine, load)

    def remove(self) -> None:
        """The last server gets no more requests, and is gone once it has none."""
        server = [one for one in self.servers if not one.drains][-1]
        server.drains = True
        self._drop(server)

    def _drop(self, server: Server) -> None:
        if server.open:
            self._clock.after(1.0, partial(self._drop, server))
            return
        self.count()
        self.servers.remove(server)

    def count(self) -> None:
        """Add up how long replicas have been there."""
        replicas = sum(len(server.engines) for server in self.servers)
        self._record.figures.replica_seconds += replicas * (self._clock.now - self._counted)
        self._counted = self._clock.now

    # Failures

    def _return(self, server: Server, engine: SimulatedEngine, load: float) -> None:
        if load:
            self._clock.after(load, partial(self._be_ready, server, engine))
        else:
            self._be_ready(server, engine)

    def _be_ready(self, server: Server, engine: SimulatedEngine) -> None:
        engine.state = "ready"
        if self._shape.lives:
            self._clock.after(self._random.expovariate(1 / self._shape.lives), partial(self.fail, server, engine))

    def fail(self, server: Server, engine: SimulatedEngine) -> None:
        """An engine dies, fails what it had and is started again."""
        engine.state = "dead"
        for job in server.fail(engine):
            self._record.figures.lost += 1
            job.ended(True)
        self._return(server, engine, self._times.load)
