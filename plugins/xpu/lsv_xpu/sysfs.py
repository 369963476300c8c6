"""Intel GPUs as the kernel shows them, without any library of the vendor."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from lsv_xpu.devices_table import by_id

_INTEL = "0x8086"
_INTEGRATED = re.compile(r"0000:00:")  # what sits on the processor's own bus is part of it


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. ``pci`` is its address; ``render`` the node programs open, "" where the kernel made none.

    ``total_bytes`` is its own memory, 0 where the driver does not tell; ``numa`` its node, -1 for none; ``cpus`` the
    logical CPUs beside it, as a list such as ``0-17``.
    """

    pci: str
    device_id: int
    driver: str
    render: str = ""
    total_bytes: int = 0
    numa: int = -1
    cpus: str = ""

    @property
    def discrete(self) -> bool:
        return not _INTEGRATED.match(self.pci)

    @property
    def name(self) -> str:
        model = by_id(self.device_id)
        return f"Intel {model.name}" if model else f"Intel GPU {self.device_id:#06x}"


class Host:
    """The kernel's view of this machine, below ``root``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._drm, self._dev = root / "sys/class/drm", root / "dev/dri"

    def cards(self) -> list[Card]:
        """Intel's GPUs in the order of their PCI addresses."""
        found = [_read_card(folder) for folder in self._folders()]
        return sorted((card for card in found if card is not None), key=lambda card: card.pci)

    def others(self) -> list[str]:
        """PCI ids (vendor:device) of the GPUs that are not Intel's."""
        ids = [(_text(folder / "device/vendor"), _text(folder / "device/device")) for folder in self._folders()]
        return sorted(f"{vendor[2:]}:{device[2:]}" for vendor, device in ids if vendor not in ("", _INTEL))

    def why_closed(self, card: Card) -> str | None:
        """None where this process may open the card, else what is in the way and what to do about it."""
        node = self._dev / card.render
        if not card.render:
            return f"its driver ({card.driver or 'none'}) made no render node: install the kernel driver xe or i915"
        if not node.exists():
            return (
                f"/dev/dri/{card.render} is not there: in a container, pass it in (--device /dev/dri, or for one card "
                f"--device /dev/dri/{card.render} with /dev/dri/by-path mounted); --privileged is not needed"
            )
        if not os.access(node, os.R_OK | os.W_OK):
            return (
                f"/dev/dri/{card.render} may not be opened: put the user into the group that owns it "
                '(sudo usermod -aG render "$USER", then log in again; in a container --group-add)'
            )
        return None

    def _folders(self) -> Iterator[Path]:
        if self._drm.is_dir():
            yield from (path for path in sorted(self._drm.iterdir()) if re.fullmatch(r"card\d+", path.name))


def _read_card(folder: Path) -> Card | None:
    device = folder / "device"
    if _text(device / "vendor") != _INTEL:
        return None
    driver = device / "driver"
    renders = sorted(path.name for path in device.glob("drm/renderD*"))
    return Card(
        pci=device.resolve().name,
        device_id=int(_text(device / "device") or "0", 16),
        driver=driver.resolve().name if driver.exists() else "",
        render=renders[0] if renders else "",
        total_bytes=_memory(folder),
        numa=int(_text(device / "numa_node") or -1),
        cpus=_text(device / "local_cpulist"),
    )


def _memory(folder: Path) -> int:
    """Bytes of a card's own memory: i915 says it for the card, xe for each tile."""
    whole = _text(folder / "lmem_total_bytes") or _text(folder / "device/lmem_total_bytes")
    if whole.isdigit():
        return int(whole)
    tiles = [_text(path) for path in (folder / "device").glob("tile*/**/physical_vram_size_bytes")]
    return sum(int(size, 0) for size in tiles if size)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
