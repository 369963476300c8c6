"""Who packs a panel is who multiplies it, so that on a machine of several memory nodes it lies with its reader."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from lsv_cpu import native
from lsv_cpu.linear import LinearRecord

PANEL, INPUTS = 32, 256
_AS_MEMBER = """
#include "gemm/gemm.h"
using namespace lsv;
extern "C" void pack_as(int rank, int size, const Linear* linear, const void* weights, const float* scales) {
  Member me(rank, size);
  pack(me, *linear, weights, scales);
}
extern "C" void multiply_as(int rank, int size, const Linear* linear, const void* x, int64_t rows, void* out) {
  alignas(64) static char operand[1 << 16];
  Member me(rank, size), alone(0, 1);
  make_operand(alone, *linear, nullptr, {(void*)x, linear->inputs}, rows, operand);
  multiply(me, *linear, operand, rows, {out, linear->outputs}, {nullptr, 0});
}
extern "C" int64_t operand_bytes_of(const Linear* linear, int64_t rows, int members) {
  return operand_bytes(*linear, rows, members);
}
"""


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """``pack`` and ``multiply`` as one member of a team runs them, over the kernels this machine would load."""
    kernels, compiler = native.load("auto"), shutil.which("g++")
    if kernels is None or compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("members")
    source = Path(native.__file__).parent / "native"
    (folder / "members.cpp").write_text(_AS_MEMBER)
    command = [compiler, "-std=gnu++17", "-O1", "-fPIC", "-shared", f"-I{source}", "members.cpp", kernels._name]
    subprocess.run([*command, "-o", "members.so"], cwd=folder, check=True, timeout=60)
    return ctypes.CDLL(str(folder / "members.so"))


def touched(tensor: torch.Tensor, units: int, before: float) -> set[int]:
    """Which of ``units`` equal parts no longer hold only what was there before."""
    return {n for n, part in enumerate(tensor.view(units, -1)) if not part.eq(before).all()}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(("format", "group"), [(0, 0), (1, 0), (2, 64)], ids=["plain", "int8", "int4"])
@pytest.mark.parametrize(("panels", "team"), [(13, 4), (2, 3), (48, 2)])
def test_a_member_multiplies_the_panels_it_has_packed(
    members: ctypes.CDLL, panels: int, team: int, format: int, group: int, rows: int
) -> None:
    library = native.load("auto")
    assert library is not None
    outputs = panels * PANEL
    record = LinearRecord(native.DTYPES[torch.bfloat16], format, 0, group, outputs, INPUTS)
    size = panels * library.lsv_panel_bytes(ctypes.byref(record))
    room = torch.zeros(size + 64, dtype=torch.uint8)
    packed = room[-room.data_ptr() % 64 :][:size]
    scales = torch.ones(panels * PANEL * INPUTS, dtype=torch.float32)
    held = torch.zeros_like(scales), torch.zeros(outputs, dtype=torch.int32)
    record.panels, record.scales, record.sums = packed.data_ptr(), held[0].data_ptr(), held[1].data_ptr()
    weights = torch.full((outputs, INPUTS * 2), 0x35, dtype=torch.uint8)  # not zero in any format
    x, owners = torch.ones(rows, INPUTS, dtype=torch.bfloat16), []
    for rank in range(team):
        packed.zero_()
        members.pack_as(
            rank, team, ctypes.byref(record), ctypes.c_void_p(weights.data_ptr()), ctypes.c_void_p(scales.data_ptr())
        )
        owners.append(touched(packed, panels, 0))
    assert sorted(panel for owned in owners for panel in owned) == list(range(panels))
    for rank in range(team):
        out = torch.full((rows, outputs), -7.0, dtype=torch.bfloat16)
        members.multiply_as(
            rank, team, ctypes.byref(record), ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(rows),
            ctypes.c_void_p(out.data_ptr()),
        )  # fmt: skip
        assert touched(out.T.contiguous(), panels, -7.0) == owners[rank]


@pytest.mark.parametrize("dtype", native.DTYPES, ids=str)
@pytest.mark.parametrize(("format", "group"), [(0, 0), (1, 0), (2, 32), (2, 128), (3, 0), (3, 100)])
def test_operands_of_any_number_of_rows_have_the_room_they_need(
    members: ctypes.CDLL, format: int, group: int, dtype: torch.dtype
) -> None:
    sizes = (ctypes.c_int64 * 2)()
    members.operand_bytes_of.restype = ctypes.c_int64
    for inputs in (24, 300, 8200):
        record = LinearRecord(native.DTYPES[dtype], format, 0, group, 64, inputs, bits=4, offset=1)
        members.lsv_operand_sizes(ctypes.byref(record), sizes)
        unit, spare = sizes
        for rows in (*range(1, 40), 255, 256, 257, 1000, 3000):
            alone, *more = (members.operand_bytes_of(ctypes.byref(record), ctypes.c_int64(rows), n) for n in (0, 1))
            assert alone <= -(-rows // 16) * unit
            assert more[0] - alone <= spare
