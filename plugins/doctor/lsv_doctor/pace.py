"""Whether the system lets its processors and Intel GPUs run as fast as they can: read from sysfs, never changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_CPU = "sys/devices/system/cpu"
_CARDS = "sys/class/drm"
_CLOCKS = (
    (f"{_CARDS}/card[0-9]*/device/tile[0-9]*/gt[0-9]*/freq0", "min_freq", "rp0_freq"),
    (f"{_CARDS}/card[0-9]*/gt/gt[0-9]*", "rps_min_freq_mhz", "rps_RP0_freq_mhz"),
    (f"{_CARDS}/card[0-9]*", "gt_min_freq_mhz", "gt_RP0_freq_mhz"),
)
"""Folders with the clocks of a part of a card in MHz, the requested lowest and the fastest one: those of the driver xe,
of i915, and of i915 before Linux 5.18. Sources: Documentation/gpu/xe/xe_gt_freq and drivers/gpu/drm/i915 of Linux."""
_SCRIPT = "deploy/systemd/performance.sh sets it"


def look(root: Path = Path("/")) -> Iterator[tuple[str, str]]:
    """What there is to say of the machine whose files are below ``root``: a name, and what was found.

    Virtual machines and containers mostly show nothing of this, and then nothing is said.
    """
    governors = Counter(map(_read, sorted((root / _CPU).glob("cpu[0-9]*/cpufreq/scaling_governor"))))
    if governors:
        named = ", ".join(f"{name} on {count}" for name, count in governors.most_common())
        yield (
            "governor",
            _judged(f"{named} of {governors.total()} cores", set(governors) == {"performance"}, "performance"),
        )
    for file, fast in ((f"{_CPU}/intel_pstate/no_turbo", "0"), (f"{_CPU}/cpufreq/boost", "1")):
        if value := _read(root / file):
            yield "turbo", _judged("on" if value == fast else "off", value == fast, "on")
            break
    if value := _read(root / "proc/sys/kernel/numa_balancing"):
        yield "numa balancing", _judged("off" if value == "0" else "on", value == "0", "off")
    clocks = _clocks(root)
    if clocks:
        held = sum(lowest == fastest for lowest, fastest in clocks)
        found = f"held at the fastest on {held} of {len(clocks)} parts of cards"
        yield "gpu clocks", _judged(found, held == len(clocks), "all of them")


def _clocks(root: Path) -> list[tuple[str, str]]:
    """The requested lowest and the fastest clock of each part of the Intel GPUs. A card that shows them in several
    ways counts by the first one.
    """
    clocks: dict[str, list[tuple[str, str]]] = {}
    for folders, lowest, fastest in _CLOCKS:
        known: dict[str, list[tuple[str, str]]] = {}
        for found in sorted(root.glob(folders)):
            pair = _read(found / lowest), _read(found / fastest)
            if all(pair):
                known.setdefault(found.relative_to(root / _CARDS).parts[0], []).append(pair)
        clocks = known | clocks
    return [pair for pairs in clocks.values() for pair in pairs]


def _judged(found: str, fast: bool, wanted: str) -> str:
    return found if fast else f"{found}: {wanted} is faster; {_SCRIPT}"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
