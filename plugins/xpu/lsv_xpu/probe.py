"""Which Intel GPUs can be used here, and where there is none, why. Imports no torch: a child process asks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lsv.capabilities import DeviceInfo
from lsv_runtime.devices.probing import ask_child
from lsv_xpu.devices_table import by_id, by_product_name, family_by_id, family_by_name
from lsv_xpu.sysfs import Card, Host

_GIB = 1 << 30
INSTALL_TORCH = "pip install torch --index-url https://download.pytorch.org/whl/xpu"

# What torch sees, as JSON on the last line. ``os.environ`` is the child's own: the mask it has been started with.
ASK_TORCH = """
import ctypes, json, os
answer = {"mask": os.environ.get("ZE_AFFINITY_MASK"), "selector": os.environ.get("ONEAPI_DEVICE_SELECTOR")}
try:
    import torch
    answer["torch"] = torch.__version__
    answer["xpu"] = bool(getattr(torch._C, "_has_xpu", False))
    count = torch.xpu.device_count() if answer["xpu"] else 0
    properties = [torch.xpu.get_device_properties(index) for index in range(count)]
    answer["devices"] = [
        {"name": p.name, "total": p.total_memory, "id": getattr(p, "device_id", 0), "driver": p.driver_version,
         "integrated": bool(getattr(p, "is_integrated_gpu", False))}
        for p in properties
    ]
except Exception as error:
    answer["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
missing = []
for library in ("libze_loader.so.1", "libze_intel_gpu.so.1"):
    try:
        ctypes.CDLL(library)
    except OSError:
        missing.append(library)
answer["missing"] = missing
print(json.dumps(answer))
"""


class Prober:
    """Looks first where it costs nothing, in ``host``; asks torch in a child process only where a GPU is."""

    def __init__(self, host: Host | None = None, ask: Callable[[str], Any] = ask_child) -> None:
        self._host, self._ask = host or Host(), ask

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The discrete GPUs torch can compute on, by torch's own numbers."""
        cards = self._usable()
        answer = self._ask(ASK_TORCH) if cards else None
        return _infos(answer, cards) if answer else ()

    def mask(self) -> str | None:
        """The ``ZE_AFFINITY_MASK`` under which ``devices`` were found."""
        answer = self._ask(ASK_TORCH) if self._usable() else None
        return answer["mask"] if answer else None

    def explain(self) -> str:
        """Why ``devices`` is empty: what was looked for, what was found, what to do."""
        cards = self._host.cards()
        discrete = [card for card in cards if card.discrete]
        if not discrete:
            return _explain_no_card(cards, self._host.others())
        closed = [(card, why) for card in discrete if (why := self._host.why_closed(card)) is not None]
        if len(closed) == len(discrete):
            card, why = closed[0]
            return f"found {_names(discrete)} (driver {card.driver or 'none'}), but {why}"
        return f"found {_names(discrete)}, but {_explain_torch(self._ask(ASK_TORCH))}"

    def _usable(self) -> list[Card]:
        return [card for card in self._host.cards() if card.discrete and self._host.why_closed(card) is None]


def describe(index: int, name: str, device_id: int, total: int, driver: str, card: Card | None = None) -> DeviceInfo:
    """A device by what torch tells about it (``total`` in bytes), and the place of its card where that is known.

    torch before 2.9 tells no ``device_id`` (0): its model and family go by the name.
    """
    model = by_id(device_id) or by_product_name(name)
    known = device_id or (model.ids[0] if model else 0)
    family = family_by_id(known) if known else family_by_name(name)
    detail = {"device_id": f"{known:#06x}", "driver": driver, "family": family.value}
    if card is not None:
        detail |= {"pci": card.pci, "numa": str(card.numa), "cpus": card.cpus}
    return DeviceInfo(index, f"Intel {model.name}" if model else name, total, detail)


def _infos(answer: Mapping[str, Any], cards: Sequence[Card]) -> tuple[DeviceInfo, ...]:
    found = [one for one in answer.get("devices", ()) if not one["integrated"]]
    # torch's devices are the cards one by one, but not behind a mask, or where a card has several tiles
    alike = [one["id"] for one in found] == [card.device_id for card in cards]
    places: Sequence[Card | None] = cards if alike else [None] * len(found)
    return tuple(
        describe(index, one["name"], one["id"], one["total"], one["driver"], card)
        for index, (one, card) in enumerate(zip(found, places, strict=True))
    )


def _names(cards: Sequence[Card]) -> str:
    return ", ".join(f"{card.name} ({card.pci}{_memory(card)})" for card in cards)


def _memory(card: Card) -> str:
    return f", {card.total_bytes / _GIB:.0f} GiB" if card.total_bytes else ""


def _explain_no_card(cards: Sequence[Card], others: Sequence[str]) -> str:
    if cards:
        return (
            f"looked for discrete Intel GPUs and found only graphics that are part of the processor ({_names(cards)}), "
            "which share the host's memory: use --platform cpu there"
        )
    beside = f"; there are GPUs of other makers ({', '.join(others)})" if others else ""
    return (
        f"looked for Intel GPUs in /sys/class/drm and found none{beside}. A card that is plugged in needs a kernel "
        "with its driver (xe, or i915 for the A series); --emulate runs the platform without one"
    )


def _explain_torch(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return "the process that asked torch about it ended without an answer: the driver may hang, see dmesg"
    if "torch" not in answer:
        return f"torch can't be imported ({answer.get('error', 'no reason given')}): {INSTALL_TORCH}"
    if not answer["xpu"]:
        return f"torch {answer['torch']} was built without XPU: {INSTALL_TORCH}"
    if answer["missing"]:
        return (
            f"the driver's user part can't be loaded ({', '.join(answer['missing'])}): install libze1 and "
            "libze-intel-gpu1 (packages of Intel's graphics repository)"
        )
    for variable, name in (("ZE_AFFINITY_MASK", "mask"), ("ONEAPI_DEVICE_SELECTOR", "selector")):
        if answer[name]:
            return f"{variable}={answer[name]} leaves no device: unset it or name one that is there"
    reason = f" ({answer['error']})" if "error" in answer else ""
    return (
        f"torch {answer['torch']} sees none of it{reason}: switch Resizable BAR on in the firmware; where oneAPI is "
        "installed beside torch, start lsv from a shell that has run source /opt/intel/oneapi/setvars.sh --force, or "
        "keep its libraries out of LD_LIBRARY_PATH"
    )
