"""Numbers of the sampler, to the bit: logits as integers of the same order, and a token's integer weight.

The weights are those of ``lsv_runtime.nn.sample_ops.weigh``, whose every product and sum is rounded to float32.
Compilers for GPUs contract ``a * b + c`` to one rounding, each with an option of its own against it, or with none. So
here the bits of a product pass through an exclusive or with ``zero``, an argument that is 0, which no compiler knows:
nothing is left to contract.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lsv_runtime.nn import sample_ops

HEAVIEST = tl.constexpr(1 << sample_ops.WEIGHT_BITS)
_BITS_BELOW = tl.constexpr(sample_ops.WEIGHT_BITS - 24)
_C1, _C2, _C3, _C4, _C5, _C6 = (tl.constexpr(one) for one in sample_ops.POWER_OF_TWO)
_SHIFT = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it rounds to a whole number
_LOWEST_EXPONENT = tl.constexpr(-64.0)
_NEGATIVE_ZERO = tl.constexpr(-(1 << 31))
_BELOW_SIGN = tl.constexpr((1 << 31) - 1)
LEAST_KEY = tl.constexpr(-(1 << 31))
FORBIDDEN_KEY = tl.constexpr(-(1 << 31) + 0x7FFFFF)  # of minus infinity


@triton.jit
def product(a, b, zero):
    """``a * b``, rounded to float32 whatever is done with it."""
    return ((a * b).to(tl.int32, bitcast=True) ^ zero).to(tl.float32, bitcast=True)


@triton.jit
def key_of(x):
    """float32 -> int32 of the same order; 0.0 and -0.0 are one."""
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(bits == _NEGATIVE_ZERO, 0, bits)
    return bits ^ ((bits >> 31) & _BELOW_SIGN)


@triton.jit
def value_of(key):
    return (key ^ ((key >> 31) & _BELOW_SIGN)).to(tl.float32, bitcast=True)


@triton.jit
def weigh(x, best, rate, zero):
    """int64 ``floor(2**(40 + (x - best) * rate))``."""
    exponent = tl.maximum(product(x - best, rate, zero), _LOWEST_EXPONENT)
    whole = (exponent + _SHIFT) - _SHIFT
    part = exponent - whole
    power = product(part, _C6, zero) + _C5
    power = product(power, part, zero) + _C4
    power = product(power, part, zero) + _C3
    power = product(power, part, zero) + _C2
    power = product(power, part, zero) + _C1
    power = product(power, part, zero) + 1.0
    mantissa = (power * 16777216.0).to(tl.int64)  # exact: at least 2**-1/2 has 24 bits behind the point
    return (mantissa << _BITS_BELOW) >> tl.minimum((-whole).to(tl.int64), 63)


@triton.jit
def scale(total, fraction):
    """``floor(total * fraction / 2**32)`` as in ``lsv_runtime.nn.sample_ops.scale``."""
    high, low = total >> 30, total & ((1 << 30) - 1)
    return (high * fraction + (low * fraction >> 30)) >> 2
