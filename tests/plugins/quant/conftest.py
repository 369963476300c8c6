"""Files in llama.cpp's format, written from its specification."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suite.caches import own_cache

Array = np.ndarray[Any, np.dtype[Any]]
Tensor = tuple[str, tuple[int, ...], Array]
"""Type, shape with rows first, and bytes."""
WriteGguf = Callable[[Path, Mapping[str, Any], Mapping[str, Tensor]], Path]

NUMBERS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "IQ2_XS": 17, "IQ4_NL": 20, "IQ3_S": 21, "IQ4_XS": 23, "BF16": 30, "TQ1_0": 34,
    "MXFP4": 39,
}  # fmt: skip


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def typed(value: Any) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, text(value)
    kinds = [typed(item) for item in value]
    return 9, struct.pack("<IQ", kinds[0][0], len(kinds)) + b"".join(data for _, data in kinds)


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Tensors are (type, shape with rows first, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, data = typed(value)
        head += text(key) + struct.pack("<I", kind) + data
    body = b""
    for name, (kind, shape, values) in tensors.items():
        body += b"\0" * (-len(body) % 32)
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], NUMBERS[kind], len(body))
        body += values.tobytes()
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return path


@pytest.fixture
def write_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteGguf:
    """What is made from such files goes to ``tmp_path / "cache"``."""
    monkeypatch.setenv("LSV_CACHE_ROOT", str(own_cache(tmp_path / "cache")))
    return write
