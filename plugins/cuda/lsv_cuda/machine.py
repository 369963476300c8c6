"""Which NVIDIA GPUs this machine has and torch can use, and why there are none. No torch in this process."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from lsv.capabilities import DeviceInfo
from lsv.devices.probing import ask_child

LOWEST_CAPABILITY = (7, 0)
"""Older GPUs have no kernels in torch's builds any more."""

_DRIVER_FILES = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")
_INSTALL = "install the driver, or start the container with --gpus all"

ASK = """
import json, os
found = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "gpus": []}
try:
    import torch
    found["torch"], found["cuda"] = torch.__version__, torch.version.cuda
    for index in range(torch.cuda.device_count() if torch.version.cuda else 0):
        gpu = torch.cuda.get_device_properties(index)
        found["gpus"].append([gpu.name, gpu.total_memory, gpu.major, gpu.minor, gpu.multi_processor_count])
    if found["cuda"] and not found["gpus"]:
        torch.cuda.init()
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(found))
"""
"""Prints what torch knows of the GPUs, in the order of their numbers, without taking one into use."""


class Machine:
    """Looks below ``root``, which tests replace by a folder of their own."""

    def __init__(self, root: str | Path = "/") -> None:
        self._root = Path(root)

    def gpus(self) -> tuple[DeviceInfo, ...]:
        """The GPUs that can be used. CUDA puts the fastest first: one that is too old has none but such behind it."""
        usable = takewhile(lambda gpu: tuple(gpu[2:4]) >= LOWEST_CAPABILITY, self._ask().get("gpus", ()))
        return tuple(describe(index, *gpu) for index, gpu in enumerate(usable))

    def explain(self) -> str:
        """What was looked for, what was found, and what to do."""
        driver = self.driver()
        if driver is None:
            looked = ", ".join(f"/{file}" for file in _DRIVER_FILES)
            return f"looked for an NVIDIA driver ({looked}, nvidia-smi) and found none: {_INSTALL}"
        found = self._ask()
        if not found or "torch" not in found:
            why = found.get("error", "the process that was to ask it failed")
            return f"found {driver}, but torch can't be asked about GPUs ({why}): reinstall torch"
        torch = f"torch {found['torch']}"
        if not found["cuda"]:
            return (
                f"found {driver}, but {torch} is built without CUDA: reinstall it from "
                "https://download.pytorch.org/whl with a CUDA build's index (such as /cu130)"
            )
        if not found["gpus"]:
            return (
                f"found {driver}, but {torch} (CUDA {found['cuda']}) sees no GPU{_limits(found)}: {_why_unseen(found)}"
            )
        name, _, major, minor, _ = found["gpus"][0]
        lowest = ".".join(map(str, LOWEST_CAPABILITY))
        return (
            f"found {name} of compute capability {major}.{minor}, but {lowest} is the lowest that can be used"
            f"{_limits(found)}: take a newer GPU, or --platform cpu"
        )

    def driver(self) -> str | None:
        """A few words about the driver; None where nothing shows that there is one."""
        try:
            text = (self._root / _DRIVER_FILES[0]).read_text(encoding="utf-8")
        except OSError:
            text = ""
        version = next((word for word in text.split() if word[:1].isdigit() and "." in word), None)
        if version:
            return f"the NVIDIA driver {version}"
        if any((self._root / file).exists() for file in _DRIVER_FILES) or shutil.which("nvidia-smi"):
            return "an NVIDIA driver"
        return None

    def _ask(self) -> Mapping[str, Any]:
        """What ``ASK`` finds; empty where there is no driver, which needs no question, or no answer."""
        return (ask_child(ASK) or {}) if self.driver() else {}


def describe(index: int, name: str, total: int, major: int, minor: int, multiprocessors: int) -> DeviceInfo:
    """A GPU by what torch tells about it; ``total`` in bytes."""
    detail = {"compute_capability": f"{major}.{minor}", "multiprocessors": str(multiprocessors)}
    return DeviceInfo(index, name, total, detail)


def capability(info: DeviceInfo) -> tuple[int, int]:
    """(major, minor) of the compute capability."""
    major, _, minor = info.detail["compute_capability"].partition(".")
    return int(major), int(minor)


def _limits(found: Mapping[str, Any]) -> str:
    visible = found["visible"]
    return "" if visible is None else f" within CUDA_VISIBLE_DEVICES={visible!r}"


def _why_unseen(found: Mapping[str, Any]) -> str:
    if found["visible"] is not None:
        return "name GPUs that are there, or unset the variable"
    if "error" in found:
        return f"{found['error']}; a driver older than the CUDA of torch needs an update"
    return f"nvidia-smi must list one; {_INSTALL}"
