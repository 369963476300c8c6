"""A load on a fleet, from its beginning to its figures."""

from __future__ import annotations

from simulate.autoscale import Autoscaler, Scale
from simulate.clock import Clock
from simulate.engine import Record
from simulate.figures import Figures
from simulate.fleet import Fleet, Shape
from simulate.steps import StepTimes
from simulate.workload import Crowd, Load


def simulate(
    times: StepTimes,
    shape: Shape,
    load: Load,
    *,
    seconds: float = 600.0,
    warm: float = 120.0,
    scale: Scale | None = None,
    seed: int = 0,
    bulk: bool = True,
) -> Figures:
    """What ``seconds`` come to, after ``warm`` that are not counted. The same seed gives the same figures."""
    clock, record = Clock(), Record()
    fleet = Fleet(clock, times, shape, record, str(seed), bulk=bulk)
    if scale is not None:
        Autoscaler(clock, fleet, scale)
    Crowd(clock, load, times.block_size, fleet.submit, str(seed))
    clock.run(warm)
    fleet.count()
    record.figures = Figures(seconds=seconds)
    clock.run(warm + seconds)
    fleet.count()
    return record.figures
