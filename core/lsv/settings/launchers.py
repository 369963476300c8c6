"""What launchers of several machines say in variables: torchrun, SLURM's srun, and those that spell it as torch does.

They are read only where options ask for several machines: in a job of many machines such variables are everywhere, also
around a server that is to have one of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lsv.settings import Given, Settings
from lsv.settings.setting import convert
from lsv_base.errors import ConfigError

_VARIABLES: Mapping[str, Sequence[str]] = {
    "node_rank": ("NODE_RANK", "GROUP_RANK", "SLURM_NODEID"),
    "master_addr": ("MASTER_ADDR",),
    "master_port": ("MASTER_PORT",),
}
_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Where torchrun has set this, it serves a store of its own at MASTER_PORT."""


class LaunchedRank(NamedTuple):
    """Which rank torchrun has started this process as."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    """Ranks of this machine."""
    address: str
    port: int
    served: bool
    """Whether torchrun serves a store there; otherwise rank 0 is to."""


def read_rank() -> LaunchedRank:
    """Raises ``ConfigError`` in a process that torchrun has not started."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    said = [os.environ.get(name, "") for name in names]
    address = os.environ.get("MASTER_ADDR", "")
    if not address or not all(value.isdecimal() for value in said):
        raise ConfigError(
            f"the variables {', '.join(names)} and MASTER_ADDR must say which rank this is: start it by torchrun, as "
            "torchrun --nproc-per-node=2 -m lsv doctor --collectives"
        )
    rank, size, local_rank, local_size, port = map(int, said)
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return LaunchedRank(rank, size, local_rank, local_size, address, port, served)


def node_number() -> int:
    """Which machine of a launcher's job this is, for names of files; 0 where no launcher says it."""
    said = (os.environ.get(variable, "") for variable in _VARIABLES["node_rank"])
    return next((int(number) for number in said if number.isdecimal()), 0)


def given_or_launched(settings: Settings, name: str) -> Given | None:
    """The value of an option and where it is from; else what a launcher says; None where neither says anything.

    Raises ``ConfigError`` for a variable that holds no such value.
    """
    if settings[name] is not None:
        return Given(settings[name], settings.source(name))
    setting = settings.declared.by_name[name]
    for variable in _VARIABLES[name]:
        said = os.environ.get(variable)
        if said and not (variable == "MASTER_PORT" and _TORCHRUN in os.environ):
            value: Any = convert(setting, said, variable)
            return Given(value, variable)
    return None
