"""Which GPUs of a maker this machine has and torch can use, and why there are none. No torch in this process."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from lsv.capabilities import DeviceInfo
from lsv_cuda.makers import NVIDIA, Maker
from lsv_runtime.devices.probing import ask_child

LOWEST_CAPABILITY = (7, 0)
"""Older GPUs have no kernels in torch's builds any more."""

ASK = """
import json, os
variables = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
found = {"visible": {name: os.environ.get(name) for name in variables}, "gpus": []}
try:
    import torch
    found["torch"], found["cuda"], found["hip"] = torch.__version__, torch.version.cuda, torch.version.hip
    for index in range(torch.cuda.device_count() if torch.version.cuda or torch.version.hip else 0):
        gpu = torch.cuda.get_device_properties(index)
        target = getattr(gpu, "gcnArchName", "").partition(":")[0]
        found["gpus"].append([gpu.name, gpu.total_memory, gpu.major, gpu.minor, gpu.multi_processor_count, target])
    if (found["cuda"] or found["hip"]) and not found["gpus"]:
        torch.cuda.init()
except Exception as error:
    found["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(found))
"""
"""Prints what torch knows of the GPUs, in the order of their numbers, without taking one into use."""


class Machine:
    """Looks for GPUs of one maker below ``root``, which tests replace by a folder of their own."""

    def __init__(self, root: str | Path = "/", maker: Maker = NVIDIA) -> None:
        self._root, self._maker = Path(root), maker

    def gpus(self) -> tuple[DeviceInfo, ...]:
        """The GPUs that can be used. CUDA puts the fastest first: one that is too old has none but such behind it."""
        found = self._ask()
        if not found.get(self._maker.build):
            return ()
        usable = takewhile(lambda gpu: tuple(gpu[2:4]) >= LOWEST_CAPABILITY, found["gpus"])
        return tuple(describe(index, *gpu) for index, gpu in enumerate(usable))

    def explain(self) -> str:
        """What was looked for, what was found, and what to do."""
        maker, driver = self._maker, self.driver()
        if driver is None:
            looked = ", ".join(f"/{file}" for file in maker.driver_files)
            return f"looked for {maker.driver} ({looked}, {maker.tool}) and found none: {self._install}"
        found = self._ask()
        if not found or "torch" not in found:
            why = found.get("error", "the process that was to ask it failed")
            return f"found {driver}, but torch can't be asked about GPUs ({why}): reinstall torch"
        torch, software = f"torch {found['torch']}", maker.software
        if not found[maker.build]:
            return (
                f"found {driver}, but {torch} is built without {software}: reinstall it from "
                f"https://download.pytorch.org/whl with a {software} build's index (such as {maker.index})"
            )
        if not found["gpus"]:
            return (
                f"found {driver}, but {torch} ({software} {found[maker.build]}) sees no GPU{self._limits(found)}: "
                f"{self._why_unseen(found)}"
            )
        name, _, major, minor, *_ = found["gpus"][0]
        lowest = ".".join(map(str, LOWEST_CAPABILITY))
        return (
            f"found {name} of compute capability {major}.{minor}, but {lowest} is the lowest that can be used"
            f"{self._limits(found)}: take a newer GPU, or --platform cpu"
        )

    def driver(self) -> str | None:
        """A few words about the driver; None where nothing shows that there is one."""
        maker = self._maker
        try:
            text = (self._root / maker.driver_files[0]).read_text(encoding="utf-8")
        except OSError:
            text = ""
        version = next((word for word in text.split() if word[:1].isdigit() and "." in word), None)
        if version:
            return f"the {maker.name} driver {version}"
        if any((self._root / file).exists() for file in maker.driver_files) or shutil.which(maker.tool):
            return maker.driver
        return None

    @property
    def _install(self) -> str:
        return f"install the driver, or start the container with {self._maker.container}"

    def _ask(self) -> Mapping[str, Any]:
        """What ``ASK`` finds; empty where there is no driver, which needs no question, or no answer."""
        return (ask_child(ASK) or {}) if self.driver() else {}

    def _limits(self, found: Mapping[str, Any]) -> str:
        visible = found["visible"].get(self._maker.visible)
        return "" if visible is None else f" within {self._maker.visible}={visible!r}"

    def _why_unseen(self, found: Mapping[str, Any]) -> str:
        maker = self._maker
        if found["visible"].get(maker.visible) is not None:
            return "name GPUs that are there, or unset the variable"
        if "error" in found:
            return f"{found['error']}; a driver older than the {maker.software} of torch needs an update"
        return f"{maker.tool} must list one; {self._install}"


def describe(
    index: int, name: str, total: int, major: int, minor: int, multiprocessors: int, target: str = ""
) -> DeviceInfo:
    """A GPU by what torch tells about it; ``total`` in bytes, ``target`` as AMD's compilers name it (gfx942)."""
    detail = {"compute_capability": f"{major}.{minor}", "multiprocessors": str(multiprocessors)}
    if target:
        detail["target"] = target
    return DeviceInfo(index, name, total, detail)


def capability(info: DeviceInfo) -> tuple[int, int]:
    """(major, minor) of the compute capability."""
    major, _, minor = info.detail["compute_capability"].partition(".")
    return int(major), int(minor)
