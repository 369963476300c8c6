"""What this machine and installation have, what is missing and how to get it."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

from lsv.offers import PlatformOffer
from lsv.plugins import Plugins
from lsv.resolve.hardware import explain_absence
from lsv_base.errors import LsvError
from lsv_base.processes.confinement.probe import find_measures
from lsv_doctor import allocator, pace
from lsv_doctor.models.release import PACKAGE, warn

_VECTOR_SETS = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
)
_GIB = 1 << 30


class Line(NamedTuple):
    """One fact. ``fix`` says how to install what is missing; ``warning`` is advice although nothing is missing."""

    what: str
    found: str
    ok: bool = True
    fix: str = ""
    warning: str = ""


def look(plugins: Plugins) -> list[Line]:
    """Everything there is to say, in the order it is shown."""
    return [*_installation(), *_machine(), *_confinement(), *_platforms(plugins), *_plugins(plugins)]


def _installation() -> Iterator[Line]:
    yield Line("python", platform.python_version())
    yield _torch()
    for package in _requirements():
        if package != "torch":
            yield _package(package)
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    yield Line(
        "c++ compiler", compiler or "missing", compiler is not None, "install g++ or clang++; native kernels need one"
    )
    ninja = shutil.which("ninja")
    yield Line("ninja", ninja or "missing", ninja is not None, "pip install ninja; native kernels are built with it")


def _requirements() -> list[str]:
    """The packages lsv needs, by its own metadata."""
    wanted = [text for text in requires("lsv") or () if "extra ==" not in text]
    return [match.group() for text in wanted if (match := re.match(r"[\w.-]+", text))]


def _package(name: str) -> Line:
    try:
        return Line(name, version(name), warning=warn() if name == PACKAGE else "")
    except PackageNotFoundError:
        return Line(name, "missing", False, f"pip install {name}")


def _torch() -> Line:
    installed = _package("torch")
    if not installed.ok:
        return installed
    try:
        import torch
    except (ImportError, OSError) as error:
        return Line("torch", f"{installed.found} can't be imported: {error}", False, "reinstall torch for this machine")
    return Line(
        "torch", f"{torch.__version__}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    )


def _machine() -> Iterator[Line]:
    flags = _cpu_flags()
    yield Line("instruction sets", " ".join(name for name in _VECTOR_SETS if name in flags) or "none of note")
    yield Line("cores", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")
    total, limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _cgroup_limit()
    note = f", limited to {limit / _GIB:.1f} GiB by the cgroup" if limit is not None and limit < total else ""
    yield Line("memory", f"{total / _GIB:.1f} GiB{note}")
    yield Line("memory allocator", allocator.describe())
    yield from (Line(what, found) for what, found in pace.look())


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _cgroup_limit() -> int | None:
    """Bytes this container may use, by cgroup v2 or v1."""
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(file).read_text(encoding="utf-8").strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None


def _confinement() -> Iterator[Line]:
    """How processes that work on what strangers send are confined here; a measure that is missing is no fault."""
    try:
        measures = find_measures()
    except LsvError as error:
        fix = "find out why python -m lsv_base.processes.confinement.probe does not start"
        yield Line("confinement", error.message, False, fix)
    else:
        yield from (Line(f"confinement: {measure.name}", measure.found) for measure in measures)


def _platforms(plugins: Plugins) -> Iterator[Line]:
    for offer in plugins.catalog.offers(PlatformOffer):
        owner = plugins.catalog.provider(offer)
        sound = owner not in plugins.broken
        devices = ", ".join(device.name for device in offer.probe())
        found = devices or f"no device here: {explain_absence(offer)}"
        if sound and owner in plugins.broken:
            yield Line(f"platform {offer.name}", plugins.broken[owner].reason, False, "see the plugin's README")
        else:
            yield Line(f"platform {offer.name}", found)


def _plugins(plugins: Plugins) -> Iterator[Line]:
    for origin in plugins.loaded.values():
        if origin.name not in plugins.broken:
            yield Line(f"plugin {origin.name}", f"{origin.distribution} {origin.version}")
    for broken in plugins.broken.values():
        fix = f"update or uninstall {broken.distribution}, or leave it out with --no-plugin {broken.name}"
        yield Line(f"plugin {broken.name}", broken.reason, False, fix)
