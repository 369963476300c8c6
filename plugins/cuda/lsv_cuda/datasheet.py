"""What a sound GPU attains, from its vendor's data sheet: what ``lsv doctor --evaluate`` compares with."""

from __future__ import annotations

from collections.abc import Mapping

_MEMORY, _ARITHMETIC = 0.85, 0.75
"""The shares of a data sheet's figures that plain copies and large products attain on a sound GPU."""

_SHEETS: Mapping[str, tuple[float, float, bool]] = {
    "B200": (8000, 2250, True),
    "H200": (4800, 989, True),
    "H100 NVL": (3938, 835, True),
    "H100 PCIe": (2039, 756, True),
    "H100": (3352, 989, True),
    "L40S": (864, 362, True),
    "L40": (864, 181, True),
    "L4": (300, 121, True),
    "A100-SXM4-80GB": (2039, 312, True),
    "A100 80GB PCIe": (1935, 312, True),
    "A100": (1555, 312, True),
    "A10G": (600, 70, True),
    "A10": (600, 125, True),
    "A40": (696, 150, True),
    "RTX 5090": (1792, 210, True),
    "RTX 4090": (1008, 165, True),
    "RTX 3090": (936, 71, True),
    "Tesla T4": (320, 65, False),
    "Tesla V100": (900, 125, False),
    "MI325X": (6000, 1307, True),
    "MI300X": (5300, 1307, True),
    "MI210": (1638, 181, True),
    "RX 7900 XTX": (960, 123, True),
}
"""Part of the name -> GB/s of memory, TFLOP/s of dense 16-bit products with float32 sums, whether bfloat16 is one of
them. Longer names stand before those that begin them.
"""


def attainable(name: str) -> Mapping[str, float]:
    """The figures of the GPU of that name; none where no sheet is known."""
    sheet = next((sheet for part, sheet in _SHEETS.items() if part in name), None)
    if sheet is None:
        return {}
    memory, arithmetic, bfloat16 = sheet
    found = {
        "copy_gb_s": memory * _MEMORY,
        "read_gb_s": memory * _MEMORY,
        "gemm_float16_tflop_s": arithmetic * _ARITHMETIC,
    }
    if bfloat16:
        found["gemm_bfloat16_tflop_s"] = arithmetic * _ARITHMETIC
    return found
