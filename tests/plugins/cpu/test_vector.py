"""Half floats as every compiler here converts them: by the processor's instructions, or by bits without those."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from lsv_base.processes.building import find_compilers
from lsv_cpu import native
from suite.instruction_sets import RUNNABLE

SOURCES = Path(native.__file__).parent / "native"
_CONVERT = """
#include "vector.h"
using namespace lsv;
extern "C" void widen(const Float16* from, float* to, float* one_by_one, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, load(from + i));
  for (int64_t i = 0; i < count; ++i) one_by_one[i] = to_float(from[i]);
}
extern "C" void narrow(const float* from, Float16* to, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, load(from + i));
}
"""
ISAS = [isa for isa in RUNNABLE if isa in ("generic", "avx2", "avx512", "avx512_emulated")]


def compilers() -> list[str]:
    try:
        return list({Path(path).resolve(): path for path in find_compilers()}.values())
    except FileNotFoundError:
        return []


@pytest.fixture(scope="module", params=[(path, isa) for path in compilers() for isa in ISAS], ids=str)
def converting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler, isa = request.param
    folder = tmp_path_factory.mktemp("convert")
    (folder / "convert.cpp").write_text(_CONVERT)
    command = [compiler, *native._FLAGS, *native._FLAGS_OF_ISA[isa], "-shared", f"-I{SOURCES}", "convert.cpp"]
    subprocess.run([*command, "-o", "convert.so"], cwd=folder, check=True, timeout=120)
    return ctypes.CDLL(str(folder / "convert.so"))


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def test_every_half_float_is_widened(converting: ctypes.CDLL) -> None:
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    found, one_by_one = torch.empty(2, len(halves))
    converting.widen(pointer(halves), pointer(found), pointer(one_by_one), ctypes.c_int64(len(halves)))
    for result in (found, one_by_one):
        assert torch.equal(result.isnan(), halves.isnan())
        assert torch.equal(result.nan_to_num(7.0).view(torch.int32), halves.float().nan_to_num(7.0).view(torch.int32))


def test_every_float_is_rounded_to_the_nearest_half_float(converting: ctypes.CDLL) -> None:
    halves = torch.arange(0x7C01, dtype=torch.int32).to(torch.int16).view(torch.float16).double()
    between = torch.cat((halves[:-1], (halves[:-1] + halves[1:].clamp(max=65536.0)) / 2)).float()
    bits = torch.randint(-(1 << 31), 1 << 31, (1 << 16,), generator=torch.Generator().manual_seed(0))
    nearby = [between.view(torch.int32) + step for step in (-1, 0, 1)]
    floats = torch.cat([bits.to(torch.int32), *nearby, *(near ^ -(1 << 31) for near in nearby)]).view(torch.float32)
    floats = torch.cat((floats, torch.zeros(-len(floats) % 16)))
    found = torch.empty(len(floats), dtype=torch.float16)
    converting.narrow(pointer(floats), pointer(found), ctypes.c_int64(len(floats)))
    wanted = floats.half()
    assert torch.equal(found.isnan(), floats.isnan())
    assert torch.equal(found[~floats.isnan()].view(torch.int16), wanted[~floats.isnan()].view(torch.int16))


def test_no_source_has_a_type_that_compilers_before_12_lack() -> None:
    for source in SOURCES.rglob("*"):
        assert source.is_dir() or "_Float16" not in source.read_text(), source
