"""8-bit numbers by integer arithmetic: the same on every GPU, whether or not it knows them."""

from __future__ import annotations

import triton
import triton.language as tl

PLAIN = tl.constexpr(0)
E4M3 = tl.constexpr(1)
E5M2 = tl.constexpr(2)
INT8 = tl.constexpr(3)

_ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding and subtracting it rounds to nearest even


@triton.jit
def real(stored, FORM: tl.constexpr):
    """What is stored as float32; E4M3 and E5M2 as uint8, INT8 still lacks its scale."""
    if FORM == E4M3:
        code = stored.to(tl.uint16)
        half = ((code & 0x80) << 8) | ((code & 0x7F) << 7)  # a half float has the exponent's bias 15, these have 7
        value = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        return tl.where((code & 0x7F) == 0x7F, float("nan"), value)
    elif FORM == E5M2:  # noqa: RET505  one branch of these is compiled
        return (stored.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        tl.static_assert(FORM == PLAIN or FORM == INT8)  # noqa: SIM109  kernels know no "in"
        return stored.to(tl.float32)


@triton.jit
def code(x, FORM: tl.constexpr):
    """float32 as E4M3 or E5M2 in uint8, rounded to nearest even; the largest number stands for larger ones."""
    MANTISSA: tl.constexpr = 3 if FORM == E4M3 else 2
    BIAS: tl.constexpr = 7 if FORM == E4M3 else 15
    LARGEST: tl.constexpr = 448.0 if FORM == E4M3 else 57344.0
    SUBNORMAL: tl.constexpr = 16384.0 if FORM == E4M3 else 128.0  # where float32 is as coarse as subnormal codes are
    DROPPED: tl.constexpr = 23 - MANTISSA
    size = tl.minimum(tl.abs(x), LARGEST)
    bits = size.to(tl.uint32, bitcast=True)
    rounded = bits + ((1 << (DROPPED - 1)) - 1) + ((bits >> DROPPED) & 1)
    normal = (rounded >> DROPPED) - ((127 - BIAS) << MANTISSA)
    subnormal = (size + SUBNORMAL).to(tl.uint32, bitcast=True) & 0xFF
    number = tl.where(size < 2.0 ** (1 - BIAS), subnormal, normal)
    number = tl.where(x != x, 0x7F, number)
    sign = (x.to(tl.uint32, bitcast=True) >> 24) & 0x80
    return (number | sign).to(tl.uint8)


@triton.jit
def integer(x):
    """float32 in [-127, 127] as int8, rounded to nearest even."""
    return ((x + _ROUNDER) - _ROUNDER).to(tl.int8)
