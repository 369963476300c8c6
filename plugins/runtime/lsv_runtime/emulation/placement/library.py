"""The emulated device, compiled against the installed torch at first use and kept in the user's cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import subprocess
from functools import cache
from pathlib import Path

import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from lsv.settings.caching import cache_root
from lsv_base.processes.building import BuildCache, explain, find_compiler, run

log = logging.getLogger(__name__)

DEVICE_TYPE = "emulated"
_SOURCE = Path(__file__).parent / "device.cpp"
_FLAGS = ("-O1", "-std=c++20", "-fPIC", "-shared", "-w")
_INT, _INT64 = ctypes.c_int, ctypes.c_int64
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "lsv_emulated_held": (_INT64, [_INT]),
    "lsv_emulated_peak": (_INT64, [_INT]),
    "lsv_emulated_reset_peak": (None, [_INT]),
    "lsv_emulated_set_device": (None, [_INT]),
    "lsv_emulated_waits": (_INT64, []),
    "lsv_emulated_pinned_allocations": (_INT64, []),
    "lsv_emulated_mark": (_INT64, []),
    "lsv_emulated_finish": (_INT, [_INT64]),
}


@cache
def load() -> ctypes.CDLL | None:
    """Register the device with torch, for good; None, and a notice, where it can't be compiled."""
    try:
        path = BuildCache("emulation", cache_root).take(f"device-{_key()}.so", "the emulated device", _build)
        rename_privateuse1_backend(DEVICE_TYPE)
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        found = ctypes.CDLL(str(path))
    except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
        log.warning("EMULATED without placement (%s): tensors of the device lie on the host", explain(problem))
        return None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, result
    return found


def _key() -> str:
    """Identifies what a binary was built from: it fits one build of torch alone."""
    parts = (torch.__version__, str(torch.version.git_version), *_FLAGS, _SOURCE.read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _build(path: Path) -> None:
    root = Path(torch.__file__).parent
    include, libraries = root / "include", root / "lib"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    run([
        find_compiler(), *_FLAGS, abi, f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", str(_SOURCE),
        "-o", str(path), f"-L{libraries}", "-lc10", "-ltorch_cpu", "-ltorch",
    ])  # fmt: skip
