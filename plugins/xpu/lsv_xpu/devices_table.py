"""What is known of Intel's GPUs: the family of each, what it lacks, and memory and speeds of the discrete ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

import msgspec

from lsv.capabilities import DeviceInfo
from lsv_base.errors import suggestion

_GIB = 1 << 30


class Family(Enum):
    """A generation of the architecture. None of them multiplies 8-bit floats: such weights are expanded first."""

    ALCHEMIST = "Alchemist"
    BATTLEMAGE = "Battlemage"
    PONTE_VECCHIO = "Ponte Vecchio"
    LUNAR_LAKE = "Lunar Lake"
    PANTHER_LAKE = "Panther Lake"
    UNKNOWN = "unknown"


_FP8 = "matrix engines for 8-bit floats: fp8 weights are expanded to float16 or bfloat16 before they are multiplied"
_LINKS = "links between cards: ranks talk over PCIe, and reach each other's memory only where driver and board allow it"
LACKS: Mapping[Family, Mapping[str, str]] = {
    Family.ALCHEMIST: {
        "fp8": _FP8,
        "fp64": "64-bit floats: ops that use them fail, unless the driver emulates them "
        "(OverrideDefaultFP64Settings=1 and IGC_EnableDPEmulation=1)",
        "bf16": "dependable bfloat16: results are known to be inaccurate",
        "peer_access": "access to another card's memory: ranks go through host memory",
    },
    Family.BATTLEMAGE: {"fp8": _FP8, "links": _LINKS},
    Family.PONTE_VECCHIO: {"fp8": _FP8},
    Family.LUNAR_LAKE: {"fp8": _FP8},
    Family.PANTHER_LAKE: {"fp8": _FP8},
    Family.UNKNOWN: {"fp8": _FP8},
}
"""What devices of a family have not, and what that means, by a short name."""

LARGEST_ALLOCATION: Mapping[Family, int] = {Family.ALCHEMIST: 4 * _GIB - (2 << 20)}
"""The most bytes a device of a family gives at a time, less what torch rounds up to (2 MiB): the driver's own limit,
however much is free, where the hardware does not address more in one buffer.
"""

FAMILY_IDS: tuple[tuple[int, int, Family], ...] = (
    (0x0B69, 0x0B6E, Family.PONTE_VECCHIO),
    (0x0BD0, 0x0BE5, Family.PONTE_VECCHIO),
    (0x5690, 0x56BF, Family.ALCHEMIST),
    (0x56C0, 0x56C2, Family.ALCHEMIST),
    (0x6420, 0x6420, Family.LUNAR_LAKE),
    (0x64A0, 0x64B0, Family.LUNAR_LAKE),
    (0xB080, 0xB0B0, Family.PANTHER_LAKE),
    (0xE202, 0xE223, Family.BATTLEMAGE),
)
"""The first and the last PCI device id of each range, and its family.

Source: ``include/drm/intel/pciids.h`` of Linux (0755a4e), the lists of PVC, DG2 (0x5690 to 0x56BF: Arc A and Arc Pro
A), ATS-M (0x56C0 to 0x56C2: Flex), LNL, PTL and BMG; ids between those that are listed are taken to be of the family.
Other lists there are left out, as nothing is known here of what such devices can do: CRI (0x674C to 0x6750), NVL, WCL,
and whatever came before Alchemist.
"""

_FAMILY_NAMES: tuple[tuple[str, Family], ...] = (
    (r"Arc (Pro )?A\d\d", Family.ALCHEMIST),
    (r"Data Center GPU Flex", Family.ALCHEMIST),
    (r"Arc (Pro )?B\d\d", Family.BATTLEMAGE),
    (r"Data Center GPU Max", Family.PONTE_VECCHIO),
)
"""Names of drivers, for a torch that tells no id."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU. Speeds are peaks of the maker's specification, of dense matrices.

    ``ids`` are its PCI device ids. A card of several tiles (``tiles``) appears as so many devices of equal parts.
    """

    name: str
    ids: tuple[int, ...]
    family: Family
    gib: int
    gigabytes_per_second: float
    fp16_tflops: float
    int8_tops: float
    tiles: int = 1

    @property
    def lacks(self) -> Mapping[str, str]:
        return LACKS[self.family]

    @property
    def device_bytes(self) -> int:
        """Memory of one device."""
        return self.gib * _GIB // self.tiles


MODELS: tuple[Model, ...] = (
    Model(name="Arc A770", ids=(0x56A0,), family=Family.ALCHEMIST, gib=16,
          gigabytes_per_second=560, fp16_tflops=137, int8_tops=275),
    Model(name="Data Center GPU Flex 170", ids=(0x56C0,), family=Family.ALCHEMIST, gib=16,
          gigabytes_per_second=576, fp16_tflops=128, int8_tops=256),
    Model(name="Arc B580", ids=(0xE20B,), family=Family.BATTLEMAGE, gib=12,
          gigabytes_per_second=456, fp16_tflops=116, int8_tops=233),
    Model(name="Arc Pro B50", ids=(0xE212,), family=Family.BATTLEMAGE, gib=16,
          gigabytes_per_second=224, fp16_tflops=85, int8_tops=170),
    Model(name="Arc Pro B60", ids=(0xE210, 0xE211), family=Family.BATTLEMAGE, gib=24,
          gigabytes_per_second=456, fp16_tflops=98, int8_tops=197),
    Model(name="Arc Pro B65", ids=(0xE222,), family=Family.BATTLEMAGE, gib=32,
          gigabytes_per_second=608, fp16_tflops=98, int8_tops=197),
    Model(name="Arc Pro B70", ids=(0xE223,), family=Family.BATTLEMAGE, gib=32,
          gigabytes_per_second=608, fp16_tflops=183, int8_tops=367),
    Model(name="Data Center GPU Max 1100", ids=(0x0BD9, 0x0BDA, 0x0BDB), family=Family.PONTE_VECCHIO, gib=48,
          gigabytes_per_second=1229, fp16_tflops=352, int8_tops=704),
    Model(name="Data Center GPU Max 1550", ids=(0x0BD5, 0x0BD6), family=Family.PONTE_VECCHIO, gib=128,
          gigabytes_per_second=3277, fp16_tflops=832, int8_tops=1664, tiles=2),
)  # fmt: skip

_BY_ID: Mapping[int, Model] = {device_id: model for model in MODELS for device_id in model.ids}


def by_id(device_id: int) -> Model | None:
    """The model of a PCI device id; None for one that is not in the table."""
    return _BY_ID.get(device_id)


def by_product_name(name: str) -> Model | None:
    """The model that a driver's name for it (``"Intel(R) Arc(TM) A770 Graphics"``) contains."""
    return next((model for model in MODELS if model.name in _plain(name)), None)


def family_by_id(device_id: int) -> Family:
    return next((family for first, last, family in FAMILY_IDS if first <= device_id <= last), Family.UNKNOWN)


def family_by_name(name: str) -> Family:
    """The family of a driver's name for a device."""
    return next((family for text, family in _FAMILY_NAMES if re.search(text, _plain(name))), Family.UNKNOWN)


def _plain(name: str) -> str:
    return name.replace("(R)", "").replace("(TM)", "")


def by_short_name(name: str) -> Model:
    """The model whose name ends in ``name`` (``"B60"``, ``"Max 1100"``). Raises ``ValueError`` with the known ones."""
    for model in MODELS:
        if model.name.lower().endswith(name.lower()) and name:
            return model
    known = [model.name.rpartition("GPU ")[2].removeprefix("Arc ").removeprefix("Pro ") for model in MODELS]
    raise ValueError(f"must be one of {', '.join(known)}, got {name!r}{suggestion(name, known)}")


def model_of(info: DeviceInfo) -> Model | None:
    """The model of a device that was found, by the ``device_id`` in its detail."""
    text = info.detail.get("device_id", "")
    return by_id(int(text, 16)) if text else None


def family_of(info: DeviceInfo) -> Family:
    """The family of a device that was found, by the ``family`` in its detail."""
    return Family(info.detail.get("family", Family.UNKNOWN.value))
