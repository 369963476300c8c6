"""Attention with linear biases (Press et al. 2022): a penalty on distance, steeper from head to head."""

from __future__ import annotations


def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """The slope of each head: 2 to the powers of ``most / n``, 2 ``most / n`` … ``most`` where n is a power of two.

    Other numbers take those of the power below, and then every other one of twice as many heads.
    """
    known = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-most * (head + 1) / known) for head in range(known)]
    between = [2.0 ** (-most * (2 * head + 1) / (2 * known)) for head in range(heads - known)]
    return (*slopes, *between)
