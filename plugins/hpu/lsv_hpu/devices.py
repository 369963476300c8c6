"""Which Gaudi accelerators can be used here, and where there is none, why. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec

from lsv.capabilities import DeviceInfo
from lsv_runtime.devices.probing import ask_child

Gaudi = Literal["gaudi2", "gaudi3"]
GIB = 1 << 30
MEMORY: Mapping[Gaudi, int] = {"gaudi2": 96 * GIB, "gaudi3": 128 * GIB}
LARGEST_FP8: Mapping[Gaudi, float] = {"gaudi2": 240.0, "gaudi3": 448.0}
"""The largest number that e4m3 holds on a device."""
NAMES: Mapping[Gaudi, str] = {"gaudi2": "Gaudi 2", "gaudi3": "Gaudi 3"}

_VENDOR = "0x1da3"
_GAUDI_1 = ("0x1000", "0x1001", "0x1010", "0x1011")
_BY_ID: Mapping[str, Gaudi] = {"0x1020": "gaudi2", "0x1021": "gaudi2", "0x1060": "gaudi3", "0x1063": "gaudi3"}
_BY_PREFIX: Mapping[str, Gaudi] = {"HL-22": "gaudi2", "HL-28": "gaudi2", "HL-3": "gaudi3"}
_SOFTWARE = "habana_frameworks"
_INSTALL = (
    "install Intel's Gaudi software 1.23 or later (docs.habana.ai, Installation Guide), in a container with "
    "--runtime=habana -e HABANA_VISIBLE_DEVICES=all"
)

# What hl-smi lists and the modules this process may use, as JSON on the last line.
ASK = """
import json, os, subprocess
answer = {"modules": os.environ.get("HABANA_VISIBLE_MODULES")}
try:
    query = ["hl-smi", "-Q", "index,module_id,name,memory.total", "-f", "csv,noheader,nounits"]
    answer["lines"] = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
except FileNotFoundError:
    answer["error"] = "hl-smi is not installed"
except Exception as error:
    answer["error"] = f"hl-smi failed: {error}"
print(json.dumps(answer))
"""


_RUNTIME = (
    "start the container with --runtime=habana. If Docker answers 'Unknown runtime specified habana' or 'unknown or "
    "invalid runtime name', install habanalabs-container-runtime on the host, register the runtime in "
    "/etc/docker/daemon.json and restart Docker"
)


class Card(msgspec.Struct, frozen=True):
    """An accelerator. ``module`` is the number its software goes by; ``total_bytes`` its memory."""

    module: str
    gaudi: Gaudi
    total_bytes: int
    name: str


class Prober:
    """Asks ``hl-smi`` in a child process where the kernel shows accelerators. ``root`` is where sysfs is looked for."""

    def __init__(
        self,
        root: Path = Path("/"),
        ask: Callable[[str], Any] = ask_child,
        software: Callable[[], bool] = lambda: find_spec(_SOFTWARE) is not None,
    ) -> None:
        self._class, self._nodes = root / "sys/class/accel", root / "dev/accel"
        self._ask, self._software = ask, software

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The accelerators, numbered in the order of ``HABANA_VISIBLE_MODULES`` where it is set."""
        if not self._ids() or not self._nodes.is_dir() or not self._software():
            return ()
        return tuple(describe(index, card) for index, card in enumerate(self._cards()))

    def explain(self) -> str:
        """What was looked for, what was found, what to do."""
        ids = self._ids()
        if not ids:
            return (
                f"looked for Gaudi accelerators in {self._class} and found none. A card that is plugged in needs "
                "Intel's driver (habanalabs-dkms); --emulate runs the platform without one"
            )
        known = [_BY_ID[one] for one in ids if one in _BY_ID]
        if not known:
            first = "Gaudi 1, which its software no longer serves" if ids[0] in _GAUDI_1 else f"PCI device {ids[0]}"
            return f"found {first}: Gaudi 2 or Gaudi 3 is needed"
        found = f"found {len(known)} {NAMES[known[0]]}"
        if not self._nodes.is_dir():
            return f"{found}, but {self._nodes} is not there: {_RUNTIME}"
        if not self._software():
            return f"{found}, but {_SOFTWARE} is not installed: {_INSTALL}"
        answer = self._ask(ASK) or {"error": "hl-smi gave no answer"}
        if answer.get("error"):
            return f"{found}, but {answer['error']}: {_INSTALL}"
        if answer.get("modules"):
            return f"{found}, but HABANA_VISIBLE_MODULES={answer['modules']} names none of them: unset it"
        return f"{found}, but hl-smi lists none of them: {_INSTALL}"

    def _ids(self) -> list[str]:
        folders = sorted(self._class.glob("accel*")) if self._class.is_dir() else []
        # accel_controlD0 and its like are second faces of the same devices
        devices = [folder / "device" for folder in folders if folder.name.removeprefix("accel").isdigit()]
        return [_text(device / "device") for device in devices if _text(device / "vendor") == _VENDOR]

    def _cards(self) -> Sequence[Card]:
        answer = self._ask(ASK)
        if not answer or answer.get("error"):
            return ()
        return visible(parse(answer["lines"]), answer.get("modules"))


def parse(lines: Sequence[str]) -> list[Card]:
    """The cards in hl-smi's lines ``index, module_id, name, MiB``, by index; what is no Gaudi 2 or 3 is left out."""
    found: list[tuple[int, Card]] = []
    for line in lines:
        fields = [field.strip() for field in line.split(",")]
        gaudi = gaudi_of(fields[2]) if len(fields) == 4 else None
        if gaudi is not None and fields[0].isdigit():
            mib = fields[3].split(" ")[0]
            total = int(mib) << 20 if mib.isdigit() and int(mib) else MEMORY[gaudi]
            found.append((int(fields[0]), Card(fields[1], gaudi, total, fields[2])))
    return [card for _, card in sorted(found, key=lambda pair: pair[0])]


def visible(cards: Sequence[Card], modules: str | None) -> list[Card]:
    """The cards of the listed modules, in the list's order; all without a list."""
    if not modules or modules == "all":
        return list(cards)
    by_module = {card.module: card for card in cards}
    return [by_module[module] for part in modules.split(",") if (module := part.strip()) in by_module]


def gaudi_of(name: str) -> Gaudi | None:
    """The generation of a board such as HL-225."""
    return next((gaudi for prefix, gaudi in _BY_PREFIX.items() if name.startswith(prefix)), None)


def describe(index: int, card: Card) -> DeviceInfo:
    detail = {"gaudi": card.gaudi, "board": card.name, "module": card.module}
    return DeviceInfo(index, NAMES[card.gaudi], card.total_bytes, detail)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
