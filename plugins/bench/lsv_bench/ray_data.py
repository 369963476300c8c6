"""Batches of samples through engines that Ray Data starts where there is room; needs ``ray[data]``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import ray
import ray.data

from lsv.config import EngineConfig
from lsv.settings import own_environment
from lsv_base.errors import ConfigError, StartError
from lsv_bench.datasets import Sample
from lsv_bench.figures import Figures
from lsv_bench.offline import Counts, rates

Batch = dict[str, Any]
"""Columns: of what goes in ``sample``, as JSON; of what comes out the counts, and when the batch began and ended."""


class Room(NamedTuple):
    """What Ray reserves for an engine: an actor is on one machine, and the ranks of its engine are its children."""

    cpus: float
    devices: int
    device: str
    """What Ray calls them; empty for the host's own cores."""

    @classmethod
    def of(cls, config: EngineConfig, device: str, cpus: float) -> Room:
        """``cpus`` are those of a rank."""
        ranks = config.topology.ranks
        return cls(cpus * ranks, ranks if device else 0, device)

    def needs(self) -> dict[str, float]:
        """By what Ray calls it, without what is not needed."""
        found = {"CPU": self.cpus, self.device: float(self.devices)}
        return {name: count for name, count in found.items() if count}

    def options(self) -> dict[str, Any]:
        """As ``map_batches`` takes them."""
        found: dict[str, Any] = {"num_cpus": self.cpus}
        if self.device == "GPU":
            found["num_gpus"] = self.devices
        elif self.device:
            found["resources"] = {self.device: self.devices}
        return found


class Spread(NamedTuple):
    """Over how many engines samples are spread, how many one is given at once, and the cluster they run on."""

    instances: int
    batch_size: int
    address: str | None
    """None is the cluster this machine is in, or else one of this machine alone."""


def columns(answers: Sequence[Counts], began: float, ended: float) -> Batch:
    """What comes out of a batch, a row for each sample."""
    counts = {name: np.array([getattr(one, name) for one in answers]) for name in Counts._fields}
    return {**counts, "began": np.full(len(answers), began), "ended": np.full(len(answers), ended)}


def measure(samples: Sequence[Sample], actor: type, arguments: list[str], room: Room, spread: Spread) -> Figures:
    """``actor(arguments)`` is an engine, which takes and gives a ``Batch``. Seconds count from the beginning of the
    first batch to the end of the last: loading comes before.

    Raises ``ConfigError`` without a cluster that has room for the engines, ``StartError`` where one of them fails.
    """
    _join(spread, room)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    rows = [{"sample": msgspec.json.encode(sample).decode()} for sample in samples]
    blocks = min(len(rows), max(spread.instances, math.ceil(len(rows) / spread.batch_size)))
    try:
        found = (
            ray.data.from_items(rows, override_num_blocks=blocks)
            .map_batches(
                actor, fn_constructor_args=(arguments,), batch_size=spread.batch_size,
                concurrency=spread.instances, runtime_env={"env_vars": own_environment()}, **room.options(),
            )
            .take_all()
        )  # fmt: skip
    except ray.exceptions.RayError as cause:
        raise StartError(f"an engine on the Ray cluster failed: {cause}") from cause
    finally:
        ray.shutdown()
    seconds = max(row["ended"] for row in found) - min(row["began"] for row in found)
    answers = [Counts(*(int(row[name]) for name in Counts._fields)) for row in found]
    return {"instances": spread.instances, **rates(answers, seconds)}


def _join(spread: Spread, room: Room) -> None:
    """Raises ``ConfigError`` where there is no cluster, or none that could hold the engines."""
    address = spread.address
    try:
        ray.init(address=address, configure_logging=False, include_dashboard=None if address else False)
    except (OSError, ValueError) as cause:
        raise ConfigError(f"ray.address={address}: {cause}", param="ray.address") from cause
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = sum(_fitting(there, room.needs()) for there in machines) if room.needs() else spread.instances
    if fitting < spread.instances:
        ray.shutdown()
        needed = ", ".join(f"{count:g} {name}" for name, count in room.needs().items())
        raise ConfigError(
            f"the Ray cluster has room for {fitting} of {spread.instances} engines, each of which needs {needed} of "
            "one machine: lower --instances or add machines",
            param="instances",
        )


def _fitting(there: dict[str, float], needs: dict[str, float]) -> int:
    """How many engines a machine has room for."""
    return min(int(there.get(name, 0.0) // count) for name, count in needs.items())
