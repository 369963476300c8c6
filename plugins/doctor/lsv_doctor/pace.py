"""Whether the system lets its processors run as fast as they can: read from sysfs, and changed by nobody here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_CPU = "sys/devices/system/cpu"
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


def _judged(found: str, fast: bool, wanted: str) -> str:
    return found if fast else f"{found}: {wanted} is faster; {_SCRIPT}"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
