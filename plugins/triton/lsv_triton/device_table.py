"""Launch parameters of kernels by kind of device: looked up by capability, never tuned while serving."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import triton

INTERPRETER = "interpreter"
"""Triton's interpreter, where small tiles are quick."""

_CAPABILITIES: tuple[tuple[tuple[int, int], str], ...] = (
    ((12, 0), "ada"),
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 6), "ada"),
    ((8, 0), "ampere"),
    ((0, 0), "small"),
)
"""The first compute capability of each kind of NVIDIA GPU, which determines the shared memory of a program:
227 KiB from 9.0 on, 163 KiB for 8.0, 99 KiB for 8.6, 8.9 and 12.x, 64 KiB for 7.5. Source: CUDA C Programming Guide,
"Compute Capabilities".
"""
_LIKE = {"blackwell": "hopper"}
"""The kind whose launches another kind has where the table names none for it."""
_SMALLER = {(8, 7): "ampere"}
"""Exceptions with more memory: Orin, which has as much as 8.0."""

_INTEL_IDS: tuple[tuple[int, int, str], ...] = ((0x0B69, 0x0B6E, "ponte_vecchio"), (0x0BD0, 0x0BE5, "ponte_vecchio"))
"""The first and the last PCI device id of each range. Source: ``include/drm/intel/pciids.h`` of Linux."""
_INTEL_ID = re.compile(r"\[(0x[0-9a-fA-F]{4})\]")
"""The PCI id in a driver's name for an unknown card: ``Intel(R) Graphics [0xe211]``."""
_INTEL_NAME = re.compile(r"\bMax \d{4}\b|\bPonte Vecchio\b")


@dataclass(frozen=True, slots=True)
class Launch:
    """Sizes of a kernel's tiles, by the names it gives them, with its warps and pipeline stages."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    warps: int = 4
    stages: int = 2

    def __getitem__(self, name: str) -> int:
        return self.sizes[name]


def _attention(
    rows: int, keys: int, *, programs: int, few: int = 0, segment: int = 512, warps: int = 4, stages: int = 2
) -> Launch:
    sizes = {"rows": rows, "keys": keys, "few": few, "segment": segment, "doubling": 16, "programs": programs}
    return Launch(sizes, warps, stages)


_TABLE: Mapping[str, Mapping[str, Launch]] = {
    # rows and keys: of a tile of scores; few: its rows where every row of the step has one token, 0 where fewer rows
    # would be computed in another way; segment: keys whose result is computed on its own; doubling: segments until they
    # are twice as long; programs: as many share the keys of a step evenly
    "attention": {
        "default": _attention(32, 32, programs=512),
        "hopper": _attention(64, 64, programs=528, stages=3),  # the instruction of its matrix unit takes 64 rows
        "ampere": _attention(64, 32, few=16, programs=432),
        "ada": _attention(64, 32, few=16, programs=432),
        "ponte_vecchio": _attention(64, 32, programs=1024, warps=8),
        "arc": _attention(32, 32, programs=320, warps=8),
        INTERPRETER: _attention(128, 64, segment=128, programs=64),
    },
    # elements: in the hands of one program at once
    "kv_write": {"default": Launch({"elements": 1024}), INTERPRETER: Launch({"elements": 1 << 16})},
    "rms_norm": {"default": Launch({"elements": 1024})},
    "rope": {"default": Launch({"elements": 1024})},
    "rope_write": {"default": Launch({"elements": 1024}), INTERPRETER: Launch({"elements": 1 << 13})},
    "sum_ranks": {"default": Launch({"elements": 512}), INTERPRETER: Launch({"elements": 8192})},
    "gated": {"default": Launch({"elements": 1024}), INTERPRETER: Launch({"elements": 8192})},
    # of a vocabulary: what one of many programs surveys and lists, what one program of a row works on at once;
    # room: for a row's candidates
    "survey": {"default": Launch({"chunk": 4096}, warps=8), INTERPRETER: Launch({"chunk": 1024})},
    "best": {"default": Launch(warps=8)},
    "list": {"default": Launch(warps=8)},
    "draw": {
        "default": Launch({"tokens": 1024, "room": 1 << 14}, warps=8),
        INTERPRETER: Launch({"tokens": 1024, "room": 256}),
    },
    "edit": {"default": Launch({"edits": 256})},
    # of one token's adapter
    "shrink": {"default": Launch({"outputs": 16, "inputs": 128})},
    "expand": {"default": Launch({"outputs": 128, "inputs": 16})},
    # inputs: of one step, and of a part; programs below which parts run side by side; outputs added up by one program
    "product": {
        "default": Launch({"span": 64, "part": 1024, "programs": 256, "outputs": 512}),
        "hopper": Launch({"span": 64, "part": 1024, "programs": 264, "outputs": 512}),
        INTERPRETER: Launch({"span": 32, "part": 64, "programs": 2, "outputs": 128}),
    },
    # a tile; with 64 outputs or more the matrix unit's long side is full, and rows get the same bits in each
    "product.few": {
        "default": Launch({"rows": 16, "outputs": 64}, warps=4, stages=3),
        "hopper": Launch({"rows": 16, "outputs": 128}, warps=4, stages=3),
        "small": Launch({"rows": 16, "outputs": 64}, warps=4, stages=2),  # a program has 64 KiB of shared memory
        INTERPRETER: Launch({"rows": 16, "outputs": 64}),
    },
    "product.some": {
        "default": Launch({"rows": 64, "outputs": 64}, warps=4, stages=3),
        "small": Launch({"rows": 64, "outputs": 64}, warps=8, stages=2),
        INTERPRETER: Launch({"rows": 32, "outputs": 64}),
    },
    "product.many": {
        "default": Launch({"rows": 128, "outputs": 64}, warps=4, stages=2),
        "hopper": Launch({"rows": 128, "outputs": 128}, warps=8, stages=3),
        # Triton 3.7 multiplies unpacked weights of 128 outputs and rows without the matrix unit there
        "blackwell": Launch({"rows": 128, "outputs": 64}, warps=8, stages=3),
        "ampere": Launch({"rows": 128, "outputs": 128}, warps=8, stages=3),
        "ada": Launch({"rows": 128, "outputs": 64}, warps=8, stages=3),  # a program has 99 KiB of shared memory
        "small": Launch({"rows": 64, "outputs": 64}, warps=4, stages=2),
        INTERPRETER: Launch({"rows": 64, "outputs": 64}),
    },
    "int8": {"default": Launch({"span": 128}), INTERPRETER: Launch({"span": 32})},
    "int8.few": {
        "default": Launch({"rows": 16, "outputs": 32}, warps=4, stages=4),
        INTERPRETER: Launch({"rows": 16, "outputs": 64}),
    },
    "int8.some": {
        "default": Launch({"rows": 64, "outputs": 64}, warps=4, stages=3),
        INTERPRETER: Launch({"rows": 32, "outputs": 64}),
    },
    "int8.many": {
        "default": Launch({"rows": 128, "outputs": 64}, warps=4, stages=3),
        "hopper": Launch({"rows": 128, "outputs": 128}, warps=8, stages=3),
        INTERPRETER: Launch({"rows": 64, "outputs": 64}),
    },
    "round_rows": {"default": Launch({"elements": 1024}, warps=4)},
    "add_experts": {"default": Launch({"elements": 1024}, warps=4)},
    "sort_rows": {"default": Launch({"elements": 1024}, warps=4)},
    "choose_experts": {"default": Launch(warps=1)},
}
"""By op and kind of device. Every op has a ``"default"``."""


_FLOAT8: Mapping[str, torch.dtype] = {
    "gfx942": torch.float8_e4m3fnuz,
    **dict.fromkeys(("gfx950", "gfx1200", "gfx1201"), torch.float8_e4m3fn),
}
"""What AMD's matrix units multiply, by target: UZ types on CDNA 3, those of OCP since CDNA 4 and RDNA 4. Source:
``HIPOptions`` of Triton's AMD backend.
"""


def float8_of() -> torch.dtype | None:
    """The e4m3 numbers that the current device's matrix unit multiplies; None where it has none, and interpreted.

    Compute capability 8.9 is the first that does.
    """
    if triton.knobs.runtime.interpret:
        return None
    target = triton.runtime.driver.active.get_current_target()
    if target.backend == "cuda":
        return torch.float8_e4m3fn if target.arch >= 89 else None
    return _FLOAT8.get(str(target.arch))


def takes_ptx() -> bool:
    """Whether kernels of the current device may hold NVIDIA's own instructions; interpreted ones may not."""
    return not triton.knobs.runtime.interpret and triton.runtime.driver.active.get_current_target().backend == "cuda"


def nvidia_kind(capability: tuple[int, int]) -> str:
    """The kind of an NVIDIA GPU by its compute capability."""
    return _SMALLER.get(capability) or next(kind for first, kind in _CAPABILITIES if capability >= first)


def intel_kind(name: str, id: int | None) -> str:
    """The kind of an Intel GPU by its PCI device id, from torch or from the name, or else by its name."""
    found = _INTEL_ID.search(name)
    id = id or (int(found[1], 16) if found else None)
    if id is not None:
        return next((kind for first, last, kind in _INTEL_IDS if first <= id <= last), "arc")
    return "ponte_vecchio" if _INTEL_NAME.search(name) else "arc"


def device_kind(device: torch.device) -> str:
    """The kind of a device; ``"default"`` for a vendor whose devices the table does not know."""
    if device.type == "cuda":
        return "small" if torch.version.hip else nvidia_kind(torch.cuda.get_device_capability(device))
    if device.type == "xpu":
        properties = torch.xpu.get_device_properties(device)
        return intel_kind(properties.name, getattr(properties, "device_id", None))
    return "default"


@functools.cache
def launch(op: str, device: torch.device) -> Launch:
    """How to launch the kernel of ``op`` on ``device``."""
    if triton.knobs.runtime.interpret or device.type == "cpu":
        kind = INTERPRETER
    else:
        kind = device_kind(device)
    return look_up(op, kind)


def look_up(op: str, kind: str) -> Launch:
    """How to launch the kernel of ``op`` on a kind of device."""
    by_kind = _TABLE[op]
    return by_kind.get(kind) or by_kind.get(_LIKE.get(kind, "default")) or by_kind["default"]
