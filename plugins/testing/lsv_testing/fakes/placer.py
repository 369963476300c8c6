"""Places for replicas that are processes of this machine: ``python -m lsv_testing.fakes.placer FD PARENT`` is one.

The option ``fake.room`` says how many there are, if that is fewer than replicas.
"""

from __future__ import annotations

import sys

import msgspec

from lsv.config import EngineConfig
from lsv.engine.replicas.nodes.charge import run
from lsv.plugins.catalog import Catalog
from lsv_base.errors import ConfigError, EngineDied
from lsv_base.processes.child import Child
from lsv_base.processes.lifeline import connect


class Given(msgspec.Struct, frozen=True, tag=True):
    """What a place is to run."""

    charge: bytes


class Ended(msgspec.Struct, frozen=True, tag=True):
    """What has come of it."""

    said: bytes


class FakePlace:
    """A process, and another one after it."""

    def __init__(self, number: int) -> None:
        self._number, self._moves = number, 0

    def __str__(self) -> str:
        return f" at place {self._number}.{self._moves}"

    @property
    def share(self) -> tuple[int, int]:
        return 0, 1

    def serve(self, charge: bytes) -> bytes:
        process: Child[Given, Ended] = Child("lsv_testing.fakes.placer", Given(charge), Ended)
        try:
            return process.receive().said
        except (EOFError, OSError) as cause:
            raise EngineDied(f"the process{self} is gone") from cause
        finally:
            process.end()

    def move(self) -> None:
        self._moves += 1


class FakePlacer:
    """Has a ``FakePlace`` for each replica."""

    def __init__(self, config: EngineConfig, catalog: Catalog) -> None:
        self._count, self._room = config.topology.data, config.options.get("fake.room")

    def join(self) -> str:
        return "127.0.0.1"

    def find(self) -> list[FakePlace]:
        if isinstance(self._room, int) and self._room < self._count:
            raise ConfigError(f"there is room for {self._room} of {self._count} replicas")
        return [FakePlace(number) for number in range(self._count)]

    def leave(self) -> None: ...


if __name__ == "__main__":
    channel = connect(int(sys.argv[1]), int(sys.argv[2]), Given)
    channel.send(Ended(run(channel.receive().charge)))
