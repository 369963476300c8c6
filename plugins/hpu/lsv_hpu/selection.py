"""What the process's device was opened with, for backends and kernels, which are made without one."""

from __future__ import annotations

from dataclasses import dataclass

from lsv.errors import ConfigError
from lsv_hpu.neural_compressor.calibration import Calibration
from lsv_hpu.vendor_ops import VendorOps


@dataclass(slots=True)
class _Selected:
    ops: VendorOps | None = None
    fused_prompts: bool = True
    calibration: Calibration | None = None
    exact_integers: bool = True


_selected = _Selected()


def select(
    ops: VendorOps | None,
    *,
    fused_prompts: bool = True,
    calibration: Calibration | None = None,
    exact_integers: bool = True,
) -> None:
    """Called where a device is opened; ``ops`` None where it is closed."""
    _selected.ops, _selected.fused_prompts, _selected.calibration = ops, fused_prompts, calibration
    _selected.exact_integers = exact_integers


def ops() -> VendorOps:
    """The calls of the open device. Raises ``ConfigError`` where there is none."""
    if _selected.ops is None:
        raise ConfigError("hpu: a kernel is asked for and no device is open")
    return _selected.ops


def fused_prompts() -> bool:
    """Whether prompts go through ``FusedSDPA``."""
    return _selected.fused_prompts


def calibration() -> Calibration | None:
    """Measurements of Neural Compressor, where QUANT_CONFIG names a file."""
    return _selected.calibration


def exact_integers() -> bool:
    """Whether the device keeps all 64 bits of integers."""
    return _selected.exact_integers
