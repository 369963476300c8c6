"""What is fuzzed: valid input, how to damage it, and the reader that must answer or refuse with an ``LsvError``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from lsv_base.errors import LsvError
from trials.fuzz.mutate import Mutate

Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """``seeds`` makes valid inputs, ``reader`` what reads one, with a folder to write to."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    mutate: Mutate
    reader: Callable[[Path], Read]
    memory: bool = True
    """Whether the reader runs in this process, so that its memory can be limited here."""


class Inputs:
    """The damaged inputs of a target by number: the same seed and number always make the same one."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target, self._seed = target, seed
        self._seeds = target.seeds()

    def make(self, number: int) -> bytes:
        if number < len(self._seeds):
            return self._seeds[number]
        rng = Random(f"{self._target.name} {self._seed} {number}")
        return self._target.mutate(rng.choice(self._seeds), rng)


def try_input(read: Read, data: bytes) -> BaseException | None:
    """What the reader raised that is not an ``LsvError``."""
    try:
        read(data)
    except LsvError:
        return None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of Rust code is no Exception
        return error
    return None
