"""What kernels for matrix products share: where a program's rows are, what codes mean, and how a tile is finished.

A tile is computed as weights times rows, [outputs, rows]: the weights fill the matrix unit's long side however few rows
there are, so that one row and thousands go through the same instructions in the same order over the inputs.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place_rows(tiles, M, BLOCK_M: tl.constexpr):
    """The expert of this program and its first row and the one behind its last, among those sorted by expert."""
    tile = tl.program_id(0)
    if tiles is None:
        expert, first, end = 0, tile * BLOCK_M, M
    else:
        expert = tl.load(tiles + 3 * tile)
        first = tl.load(tiles + 3 * tile + 1)
        end = tl.load(tiles + 3 * tile + 2)
    return expert, first, end


@triton.jit
def name_rows(pairs, first, end, top, BLOCK_M: tl.constexpr):
    """Rows to read, rows to write, and which of them are there; the others read row 0."""
    place = first + tl.arange(0, BLOCK_M)
    there = place < end
    writes = tl.where(there, place, 0)
    reads = writes
    if pairs is not None:
        writes = tl.load(pairs + writes)
        reads = writes // top
    return reads.to(tl.int64), writes.to(tl.int64), there


@triton.jit
def decode(codes, table, VALUES: tl.constexpr, FIRST: tl.constexpr, STEP: tl.constexpr):
    """What codes uint8 mean, float32. ``float8`` is e4m3 where the GPU converts it."""
    if VALUES == "even":
        # Put where 2**23 has its last bits: units that convert integers are a fourth as many as those that subtract.
        whole = (codes.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
        values = tl.fma(whole, STEP, FIRST)
    elif VALUES == "float8":
        values = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    elif VALUES == "e4m3":
        # The exponent and mantissa of e4m3 are those of a float16 that is 256 times smaller, subnormal numbers too.
        bits = codes.to(tl.uint16)
        half = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).to(tl.float16, bitcast=True)
        values = tl.where((bits & 0x7F) == 0x7F, float("nan"), half.to(tl.float32) * 256)
    elif VALUES == "e5m2":
        values = (codes.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    elif VALUES == "e2m1":
        # Likewise: two bits of exponent and one of mantissa are those of a float16 that is 2**14 times smaller.
        bits = codes.to(tl.uint16)
        values = ((bits & 8) << 12 | (bits & 7) << 9).to(tl.float16, bitcast=True).to(tl.float32) * 16384
    else:
        tl.static_assert(VALUES == "table")
        values = tl.load(table + codes.to(tl.int32)).to(tl.float32)
    return values


@triton.jit
def place_weights(n, N, columns, SPAN: tl.constexpr, TILE: tl.constexpr):
    """Where the first SPAN bytes of outputs ``n`` are, [outputs, SPAN]; the next step's are ``SPAN * TILE`` behind."""
    own = tl.where(n < N, n, 0).to(tl.int64)
    return (own // TILE * columns * TILE + own % TILE * SPAN)[:, None] + tl.arange(0, SPAN)[None, :]


@triton.jit
def read_whole(packed, quarter: tl.constexpr, first, DOT: tl.constexpr, PTX: tl.constexpr):
    """``codes + first`` for one of four codes in packed int16 and whole numbers ``first`` float32 [outputs, 1], exact:
    in 16 bits a code is put where a power of two has its last bits, and the power taken away.
    """
    if tl.bfloat16 == DOT:
        values = _place_codes(packed, quarter, 0x4300, tl.bfloat16, PTX) - (128 - first).to(DOT)
    elif tl.float16 == DOT:
        values = _place_codes(packed, quarter, 0x6400, tl.float16, PTX) - (1024 - first).to(DOT)
    else:
        values = (packed >> 4 * quarter & 15).to(tl.float32) + first
    return values.to(DOT)


@triton.jit
def _place_codes(packed, quarter: tl.constexpr, POWER: tl.constexpr, DTYPE: tl.constexpr, PTX: tl.constexpr):
    """A code in the last bits of a power of two. NVIDIA's compiler moves the bits of one number at a time, where two
    lie in a register; with ``PTX`` they are moved together.
    """
    if PTX:
        SHIFT: tl.constexpr = "0" if quarter == 0 else "4" if quarter == 1 else "8" if quarter == 2 else "12"
        POWERS: tl.constexpr = "0x43004300" if POWER == 0x4300 else "0x64006400"
        CODE: tl.constexpr = (
            "{ .reg .b32 bits; shr.u32 bits, $1, " + SHIFT + "; lop3.b32 $0, bits, 0x000f000f, " + POWERS + ", 0xEA; }"
        )
        placed = tl.inline_asm_elementwise(CODE, "=r,r", [packed], DTYPE.value, True, 2)
    else:
        placed = (packed >> 4 * quarter & 15 | POWER).to(DTYPE, bitcast=True)
    return placed


@triton.jit
def finish(total, out, scales, row_scales, bias, reads, writes, there, n, N):
    """Scale a tile float32 [outputs, rows], add the bias, and store it."""
    own = n < N
    if scales is not None:
        total = total * tl.load(scales + n, mask=own, other=0.0)[:, None]
    if row_scales is not None:
        total = total * tl.load(row_scales + reads)[None, :]
    if bias is not None:
        total = total + tl.load(bias + n, mask=own, other=0.0).to(tl.float32)[:, None]
    at = out + writes[None, :] * N + n[:, None]
    tl.store(at, total.to(out.dtype.element_ty), mask=own[:, None] & there[None, :])
