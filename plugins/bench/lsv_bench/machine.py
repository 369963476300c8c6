"""The machine a benchmark ran on, as far as its figures depend on it. No names of hosts or users."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

_VECTOR_SETS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
)
_PACKAGES = ("lsv", "torch", "transformers", "numpy")
_GIB = 1 << 30


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """``cores`` are those this process may use; ``memory_gib`` is what is installed; ``versions`` by package."""

    cpu: str
    cores: int
    instruction_sets: tuple[str, ...]
    memory_gib: float
    system: str
    versions: dict[str, str]


def describe_machine() -> Machine:
    cpuinfo = _read("/proc/cpuinfo")
    flags = frozenset(_field(cpuinfo, "flags|Features").split())
    return Machine(
        cpu=_field(cpuinfo, "model name|Model") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        instruction_sets=tuple(name for name in _VECTOR_SETS if name in flags),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions={"python": platform.python_version(), **{name: found for name in _PACKAGES if (found := _find(name))}},
    )


def _field(cpuinfo: str, names: str) -> str:
    match = re.search(rf"^(?:{names})\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match.group(1).strip() if match else ""


def _find(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError:
        return ""
