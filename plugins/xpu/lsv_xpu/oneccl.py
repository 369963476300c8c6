"""oneCCL's variables as settings: what they may be, and what the library is handed. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from lsv.config import OptionValue
from lsv.settings import Setting, dashed

PEER_ACCESS = "xpu.ccl_p2p_access"
TRIAL_SECONDS = "xpu.ccl_trial_seconds"
_BESIDE = {"UCX_MEMTYPE_CACHE": "n"}
"""For a transport of MPI over UCX, whose cache takes memory of these devices for the host's."""

_ALGORITHM = r"[a-z][a-z0-9_]*"
_RANGE = r"\d+-(\d+|max)"
_ALGORITHMS = rf"{_ALGORITHM}(:{_RANGE})?(;{_ALGORITHM}(:{_RANGE})?)*"


class Variable(msgspec.Struct, frozen=True):
    """A variable of the library: the setting that stands for it, the values it takes, its default.

    ``pattern`` is a regular expression, where there is no list of ``choices``; ``form`` says it in words.
    """

    name: str
    setting: str
    help: str
    choices: tuple[str, ...] = ()
    pattern: str = ""
    form: str = ""
    default: str | None = None

    def problem(self, value: str) -> str | None:
        """What is wrong with a value; None where nothing is."""
        if self.choices:
            good, expected = value in self.choices, f"one of {', '.join(self.choices)}"
        else:
            good, expected = re.fullmatch(self.pattern, value) is not None, self.form
        return None if good else f"{dashed(self.setting)} ({self.name}) must be {expected}, got {value!r}"


VARIABLES = (
    Variable(
        "CCL_TOPO_P2P_ACCESS", PEER_ACCESS, choices=("auto", "0", "1"), default="auto",
        help="how ranks exchange data: 1 in each other's memory (P2P), 0 through shared memory of the host (USM), "
        "auto tries P2P and checks it by value",
    ),
    Variable(
        "CCL_ZE_IPC_EXCHANGE", "xpu.ccl_ipc_exchange", choices=("pidfd", "drmfd", "sockets"),
        help="how ranks hand each other handles of memory: pidfd, drmfd or sockets",
    ),
    Variable(
        "CCL_ZE_CACHE_OPEN_IPC_HANDLES", "xpu.ccl_cache_handles", choices=("0", "1"), default="0",
        help="1 keeps other ranks' handles of memory open: some 3 % faster, but one of memory that was freed hangs the "
        "devices",
    ),
    Variable(
        "CCL_ATL_TRANSPORT", "xpu.ccl_transport", choices=("ofi", "mpi"),
        help="the library below oneCCL between machines: ofi or mpi",
    ),
    Variable(
        "FI_PROVIDER", "xpu.ccl_provider", pattern=r"[a-z][\w;,^+-]*", form="the name of a libfabric provider (tcp …)",
        help="libfabric's provider for ofi, such as tcp, shm or psm3",
    ),
    Variable(
        "CCL_LOG_LEVEL", "xpu.ccl_log_level", choices=("error", "warn", "info", "debug", "trace"),
        help="how much oneCCL logs: error, warn, info, debug or trace",
    ),
    Variable(
        "CCL_ALLGATHERV", "xpu.ccl_allgatherv", pattern=_ALGORITHMS, form="algorithm[:from-to][;…], such as ring",
        help="algorithm of the collective all sums are made with, e.g. ring or topo:0-65536;ring:65537-max",
    ),
    Variable(
        "CCL_ALLREDUCE", "xpu.ccl_allreduce", pattern=_ALGORITHMS, form="algorithm[:from-to][;…], such as ring",
        help="algorithm of oneCCL's own sums, which lsv does not use: it adds in rank order what it has gathered",
    ),
    Variable(
        "CCL_TOPO_FABRIC_VERTEX_CONNECTION_CHECK", "xpu.ccl_topology_check", choices=("0", "1"),
        help="0 switches off oneCCL's look at how devices are wired, where it is mistaken",
    ),
)  # fmt: skip


def settings() -> Iterator[Setting]:
    """A setting for each variable, under the variable's own name too.

    They are checked where this platform is used (``problems``): a variable set for another program harms no other.
    """
    for variable in VARIABLES:
        yield Setting(name=variable.setting, env=(variable.name,), default=variable.default, help=variable.help)
    yield Setting(
        name=TRIAL_SECONDS,
        type="float",
        default=60.0,
        low=1,
        help="seconds that trying out P2P between ranks may take before it counts as hung",
    )


def problems(options: Mapping[str, OptionValue]) -> Iterator[str]:
    """What is wrong with the values of ``options``, one sentence each."""
    for variable, value in _given(options):
        problem = variable.problem(value)
        if problem is not None:
            yield problem


def variables(options: Mapping[str, OptionValue], *, peer_access: bool) -> dict[str, str]:
    """What oneCCL is handed, once it is decided how ranks exchange data."""
    found = {variable.name: value for variable, value in _given(options)}
    return found | {"CCL_TOPO_P2P_ACCESS": str(int(peer_access)), **_BESIDE}


def _given(options: Mapping[str, OptionValue]) -> Iterable[tuple[Variable, str]]:
    for variable in VARIABLES:
        value = options.get(variable.setting, variable.default)
        if value is not None and value != "":
            yield variable, str(value)
