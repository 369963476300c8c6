"""What the process's device was opened with, for backends and kernels, which are made without one."""

from __future__ import annotations

from dataclasses import dataclass

from lsv_base.errors import ConfigError
from lsv_hpu.neural_compressor.calibration import Calibration
from lsv_hpu.vendor_ops import VendorOps


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The calls of an open device, whether prompts go through ``FusedSDPA``, the measurements of Neural Compressor
    where QUANT_CONFIG names a file, and whether the device keeps all 64 bits of integers.
    """

    ops: VendorOps | None
    fused_prompts: bool = True
    calibration: Calibration | None = None
    exact_integers: bool = True


_open = [Selection(None)]
"""The selections of open devices, after one for no device. A process may have several engines."""


def select(selection: Selection) -> None:
    """Called where a device is opened."""
    _open.append(selection)


def deselect(selection: Selection) -> None:
    """Called where it is closed. The device that was opened before it is used again, if there is one."""
    if selection in _open:
        _open.remove(selection)


def ops() -> VendorOps:
    """The calls of the device that was opened last. Raises ``ConfigError`` where none is open."""
    if _open[-1].ops is None:
        raise ConfigError("hpu: a kernel is asked for and no device is open")
    return _open[-1].ops


def fused_prompts() -> bool:
    return _open[-1].fused_prompts


def calibration() -> Calibration | None:
    return _open[-1].calibration


def exact_integers() -> bool:
    return _open[-1].exact_integers
