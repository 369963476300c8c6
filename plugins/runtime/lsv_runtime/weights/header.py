"""The header of a safetensors file: names, types, shapes and places of its tensors. Imports no torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lsv_base.errors import CheckpointError

_MAX_HEADER = 100_000_000
_MAX_NUMBER = 1 << 48


class StoredType(NamedTuple):
    """The type of stored numbers: torch's name of it, and its bytes."""

    name: str
    size: int


TYPES = {
    "BOOL": StoredType("bool", 1), "U8": StoredType("uint8", 1), "I8": StoredType("int8", 1),
    "I16": StoredType("int16", 2), "U16": StoredType("uint16", 2), "I32": StoredType("int32", 4),
    "U32": StoredType("uint32", 4), "I64": StoredType("int64", 8), "U64": StoredType("uint64", 8),
    "F16": StoredType("float16", 2), "BF16": StoredType("bfloat16", 2), "F32": StoredType("float32", 4),
    "F64": StoredType("float64", 8), "F8_E4M3": StoredType("float8_e4m3fn", 1),
    "F8_E5M2": StoredType("float8_e5m2", 1),
}  # fmt: skip
"""By the format's name."""


class Entry(NamedTuple):
    """A tensor of a file."""

    name: str
    type: StoredType
    shape: tuple[int, ...]
    offset: int
    """Of its data in the file."""

    @property
    def size(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * self.type.size


def parse_header(path: Path, descriptor: int) -> Iterator[Entry]:
    """The tensors of one file, each checked against the file's size. Raises ``CheckpointError``.

    Format: u64 little endian length of a JSON header, the header, the data.
    """
    size = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if size < 8 or length > min(_MAX_HEADER, size - 8):
        raise CheckpointError(
            f"{path} is not a safetensors file, or cut short: its header does not fit into {size} bytes"
        )
    try:
        header = json.loads(os.pread(descriptor, length, 8))
    except (ValueError, RecursionError) as cause:
        raise CheckpointError(f"{path}: the header is not valid JSON: {cause}") from cause
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header must be a JSON object")
    for name, entry in header.items():
        if name != "__metadata__":
            yield _parse_entry(path, name, entry, 8 + length, size)


def _parse_entry(path: Path, name: str, entry: Any, begin: int, size: int) -> Entry:
    try:
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = all(type(number) is int and 0 <= number < _MAX_NUMBER for number in (*shape, start, end))
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole or not isinstance(dtype, str):
        raise CheckpointError(f"{path}: the entry of {name} is malformed")
    if dtype not in TYPES:
        raise CheckpointError(f"{path}: {name} has dtype {dtype}, which is not one of {', '.join(TYPES)}")
    found = Entry(name, TYPES[dtype], tuple(shape), begin + start)
    if end - start != found.size or begin + end > size:
        raise CheckpointError(
            f"{path}: {name} lies at bytes {start} to {end}, which does not fit its shape or the file"
        )
    return found
