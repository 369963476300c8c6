"""The native kernels: compiled at first use, kept in the user's cache folder, called through ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch

from lsv.settings.caching import cache_root
from lsv_base.errors import ConfigError
from lsv_base.processes.building import BuildCache, explain, find_compilers, run, takes_flags
from lsv_base.processes.folder import PrivateFolder
from lsv_cpu.machine import INSTRUCTION_SETS, Machine

log = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent / "native"
# The disabled warnings come from the compiler's own intrinsics.
_FLAGS = ("-O3", "-std=gnu++17", "-fPIC", "-pthread", "-Wno-maybe-uninitialized", "-Wno-psabi")
# Whether a * b + c may be rounded once; compilers differ in what they do where they are not told. Sampling must give
# the reference's tokens, and a table its rows, whatever the compiler.
_CONTRACTION: Mapping[bool, str] = {True: "-ffp-contract=fast", False: "-ffp-contract=off"}
_EXACT = frozenset(("lookup", "sampling"))
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512")
_VNNI = (*_AVX512, "-mavx512vnni")
_BF16 = (*_VNNI, "-mavx512bf16")
# For --emulate and tests on machines without AVX-512 or tiles: slow, so that compiling them is quick.
_EMULATED = (*_AVX2, "-O1", "-Wno-ignored-attributes", "-DLSV_EMULATE_AVX512")
_EMULATED_VNNI = (*_EMULATED, "-DLSV_EMULATE_VNNI")
_EMULATED_BF16 = (*_EMULATED_VNNI, "-DLSV_EMULATE_BF16")
_EMULATED_TILES = ("-DLSV_AMX", "-DLSV_EMULATE_AMX")
_FLAGS_OF_ISA: Mapping[str, tuple[str, ...]] = {
    "generic": (),
    "avx2": _AVX2,
    "avx_vnni": (*_AVX2, "-mavxvnni"),
    "avx512": _AVX512,
    "avx512_vnni": _VNNI,
    "avx512_bf16": _BF16,
    "amx": (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8", "-DLSV_AMX"),
    "avx_vnni_emulated": (*_AVX2, "-O1", "-DLSV_EMULATE_AVX_VNNI"),
    "avx512_emulated": _EMULATED,
    "avx512_vnni_emulated": _EMULATED_VNNI,
    "avx512_bf16_emulated": _EMULATED_BF16,
    "amx_emulated": (*_BF16, *_EMULATED_TILES),
    "amx_and_avx512_emulated": (*_EMULATED_BF16, *_EMULATED_TILES),
}
_OLDER: Mapping[str, str] = {
    "amx": "avx512_bf16",
    "amx_emulated": "avx512_bf16",
    "amx_and_avx512_emulated": "avx512_bf16_emulated",
    "avx512_bf16": "avx512_vnni",
    "avx512_vnni": "avx512",
    "avx512": "avx2",
    "avx512_bf16_emulated": "avx2",
    "avx512_vnni_emulated": "avx2",
    "avx512_emulated": "avx2",
    "avx_vnni": "avx2",
    "avx_vnni_emulated": "avx2",
    "avx2": "generic",
}
"""What runs on every machine that has the instruction set, and is asked less of the compiler."""

_SLOWER = "5 to 20 times slower"
DTYPES: Mapping[torch.dtype, int] = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""``Dtype`` of native/gemm/gemm.h."""


def refusal(status: int) -> MemoryError:
    """What it means that a native function answers with another status than 0: ``Status`` of native/team.h."""
    what = "threads (see ulimit -u, and pids.max of the container)" if status == 2 else "memory"
    return MemoryError(f"the native CPU kernels: the system refuses {what}")


_POINTER, _INT, _INT64, _REAL = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
SIGNATURES: Mapping[str, tuple[type | None, list[type]]] = {
    "lsv_set_team": (_INT, [_INT, _POINTER]),
    "lsv_wake_team": (None, []),
    "lsv_attend": (_INT, [_INT, _POINTER, _POINTER, _POINTER, _POINTER]),
    "lsv_attention_calls": (_INT64, [_INT]),
    "lsv_attends_on_tiles": (_INT, [_INT, _POINTER]),
    "lsv_write": (None, [_INT, _POINTER, _POINTER, _POINTER, _POINTER]),
    "lsv_rms_norm": (None, [_INT, _POINTER, _POINTER, _POINTER, _INT64, _INT64, _INT64, _INT64, _REAL]),
    "lsv_silu_mul": (None, [_INT, _POINTER, _POINTER, _INT64, _INT64]),
    "lsv_rotate": (None, [_INT, _POINTER, _POINTER, _POINTER, _POINTER, *[_INT64] * 5]),
    "lsv_panels": (_INT64, [_POINTER]),
    "lsv_panel_bytes": (_INT64, [_POINTER]),
    "lsv_inputs_padded": (_INT64, [_POINTER]),
    "lsv_scales_of_output": (_INT64, [_POINTER]),
    "lsv_pack": (None, [_POINTER, _POINTER, _POINTER]),
    "lsv_look_up": (None, [_POINTER, _POINTER, _INT64, _POINTER]),
    "lsv_layer": (_INT, [*[_POINTER] * 5, _INT64, _POINTER, _POINTER]),
    "lsv_speculate": (_INT, [*[_POINTER] * 4, _INT64, _POINTER, _POINTER]),
    "lsv_quantise_int8": (None, [_INT, _POINTER, _INT64, _INT64, _POINTER, _POINTER]),
    "lsv_quantise_int4": (None, [_INT, _POINTER, _INT64, _INT64, _INT, _POINTER, _POINTER]),
    "lsv_operand_sizes": (None, [_POINTER, _POINTER]),
    "lsv_experts": (_INT, [_POINTER, _POINTER, _POINTER, _POINTER, _INT64, _POINTER]),
    "lsv_sum_ranks": (_INT, [_POINTER, _INT, _POINTER, _INT64, _POINTER]),
    "lsv_gather_ranks": (_INT, [_POINTER, _POINTER, _INT64, _POINTER]),
    "lsv_add_adapters": (_INT, [_POINTER, _POINTER, _POINTER, _POINTER, _INT64]),
    "lsv_linear": (_INT, [_POINTER, _POINTER, _INT64, _INT64, _POINTER]),
    "lsv_multiply_heads": (_INT, [_POINTER, _INT64, _POINTER, _INT64, _INT64, _INT64, _POINTER]),
}
"""Result and argument types of the functions that every build has."""


@dataclass(slots=True)
class _Selection:
    """The values of ``cpu.isa``, ``cpu.native`` and ``cpu.cache_dir``."""

    isa: str = "auto"
    enabled: bool = True
    cache_dir: Path | None = None


# Options reach the device that a process opens, not the backends and kernels that are made after it. Machine code is
# loaded once per process in any case.
_selection = _Selection()


def select(isa: str = "auto", *, enabled: bool = True, cache_dir: Path | None = None) -> None:
    """Choose what ``library`` returns in this process: ``isa`` is a value of ``cpu.isa`` or the name of an emulation.

    Raises ``ConfigError`` for an instruction set that the machine lacks.
    """
    if isa in INSTRUCTION_SETS:
        available = Machine().instruction_sets()
        if isa not in available:
            found = ", ".join(available) or "none that is known"
            raise ConfigError(
                f"cpu.isa={isa}, but this machine has {found}: choose auto, or emulate it with --emulate "
                "(slow, for tests)",
                param="cpu.isa",
            )
    _selection.isa, _selection.enabled, _selection.cache_dir = isa, enabled, cache_dir


def library() -> ctypes.CDLL | None:
    """The kernels selected for this process; None if plain torch has to do, which is logged once with the reason."""
    if not _selection.enabled:
        return _do_without("cpu.native=off")
    return load(_selection.isa, _selection.cache_dir)


def load(isa: str, cache_dir: Path | None = None) -> ctypes.CDLL | None:
    """The kernels for one instruction set (``"auto"`` for the best), compiled unless they were before."""
    return _load(resolve_isa(isa), cache_dir)


def resolve_isa(isa: str) -> str:
    """The instruction set that a value of ``cpu.isa`` stands for."""
    return _newest() if isa == "auto" else isa


@lru_cache(maxsize=1)
def _newest() -> str:
    return next(iter(Machine().instruction_sets()), "generic")


class _TooOld(Exception):
    """No compiler here knows an instruction set."""


@lru_cache
def _load(isa: str, cache_dir: Path | None) -> ctypes.CDLL | None:
    try:
        path = BuildCache("cpu", lambda: cache_dir or cache_root()).take(
            f"kernels-{isa}-{_key(isa)}.so", f"the native CPU kernels for {isa}", partial(_build, isa)
        )
        found = _declare(ctypes.CDLL(str(path)))
    except _TooOld as problem:
        log.warning("%s: the kernels for %s have to do, which are slower; g++ 11 knows all", problem, _OLDER[isa])
        return _load(_OLDER[isa], cache_dir)
    except (OSError, subprocess.SubprocessError) as problem:
        return _do_without(explain(problem))
    if isa.startswith("amx") and not found.lsv_amx_ready():
        log.warning("AMX tiles are not usable here (refused by the system, or wrong results): running without them")
        return _load(_OLDER[isa], cache_dir)
    return found


@lru_cache
def _do_without(reason: str) -> None:
    log.warning("no native CPU kernels (%s): plain torch runs instead, which is %s", reason, _SLOWER)


def _key(isa: str) -> str:
    """Identifies what a binary was built from. The compiler and torch are not part of it: the interface is plain C."""
    digest = hashlib.sha256(repr((platform.machine(), _FLAGS, _CONTRACTION, _FLAGS_OF_ISA[isa])).encode())
    for source in sorted(path for path in _SOURCES.rglob("*") if path.is_file()):
        digest.update(str(source.relative_to(_SOURCES)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _build(isa: str, path: Path) -> None:
    """Raises ``OSError`` or ``SubprocessError``, or ``_TooOld`` where an older instruction set is worth a try."""
    flags, compilers = _FLAGS_OF_ISA[isa], find_compilers()
    compiler = next((one for one in compilers if takes_flags(one, flags)), compilers[0] if isa == "generic" else None)
    if compiler is None:
        raise _TooOld(f"{', '.join(compilers)} can't compile for {isa}")
    _compile([compiler, *_FLAGS, *flags], path)


def _compile(command: Sequence[str], output: Path) -> None:
    """Compile the sources in parallel, then link them. Raises ``CalledProcessError``."""
    with PrivateFolder() as scratch, ThreadPoolExecutor() as pool:

        def compile_one(source: Path) -> str:
            compiled = f"{scratch.path}/{'-'.join(source.relative_to(_SOURCES).with_suffix('.o').parts)}"
            contraction = _CONTRACTION[_EXACT.isdisjoint(source.relative_to(_SOURCES).parts)]
            run([*command, contraction, "-I", str(_SOURCES), "-c", str(source), "-o", compiled])
            return compiled

        compiled = list(pool.map(compile_one, sorted(_SOURCES.rglob("*.cpp"))))
        run([command[0], "-shared", "-pthread", *compiled, "-o", str(output)])


def _declare(found: ctypes.CDLL) -> ctypes.CDLL:
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, result
    return found
