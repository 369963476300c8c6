"""Which cores a rank runs on: those its user names, or its part of what the machine has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lsv_base.errors import ConfigError
from lsv_cpu.machine import Machine, parse_cores

_UNBOUND = ("all", "nobind")


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank runs on."""

    cores: frozenset[int] | None
    """The logical CPUs it is bound to; None if it runs where the system likes."""

    threads: int
    """Compute threads it has, unless ``cpu.threads`` says otherwise."""

    def __str__(self) -> str:
        where = "unbound" if self.cores is None else f"on the cores {','.join(map(str, sorted(self.cores)))}"
        return f"{where} with {self.threads} threads"


def share_cores(text: str, rank: int, ranks: int, machine: Machine) -> Share:
    """The share of one of ``ranks``, by ``cpu.bind``. Raises ``ConfigError``.

    ``auto`` binds the ranks to parts of the machine, if there are several, and ``all`` or ``nobind`` to nothing. One
    list of cores is divided among the ranks; with several, separated by ``|`` or ``/``, each has its own.
    """
    everywhere = machine.physical_cores()
    most = max(1, len(everywhere) // ranks)
    if text in _UNBOUND or (text == "auto" and ranks == 1):
        return Share(None, most)
    if text == "auto":
        cores = _part(machine.cores(), rank, ranks)
        return Share(frozenset(cores), min(most, len(cores)))
    lists = [_parse(text, part, machine.allowed()) for part in text.replace("/", "|").split("|")]
    if len(lists) == 1:
        cores = _part(sorted(lists[0]), rank, ranks)
    elif rank < len(lists):
        cores = sorted(lists[rank])
    else:
        raise ConfigError(f"cpu.bind={text} has {len(lists)} lists, none for rank {rank}: add one", param="cpu.bind")
    return Share(frozenset(cores), len(cores))


def _part(cores: Sequence[int], rank: int, ranks: int) -> Sequence[int]:
    """As many for each rank, since none goes on before the others are done; those left over are nobody's."""
    size = max(1, len(cores) // ranks)
    first = rank * size % len(cores)
    return cores[first : first + size]


def _parse(text: str, part: str, allowed: frozenset[int]) -> frozenset[int]:
    try:
        cores = parse_cores(part)
    except ValueError:
        raise ConfigError(
            f'cpu.bind={text} is not a list of cores: write "auto", "nobind", 0-31, 0,1,2 or, one list per rank, '
            "0-31|32-63",
            param="cpu.bind",
        ) from None
    if not cores or not cores <= allowed:
        raise ConfigError(
            f"cpu.bind={text} names cores that this process may not use; allowed are {sorted(allowed)}",
            param="cpu.bind",
        )
    return cores
