"""The head of a GGUF file: metadata, and where its tensors are. Imports no torch."""

from __future__ import annotations

import math
import os
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import WEIGHTS, open_regular
from lsv_quant.gguf.types import NAMES, TYPES

T = TypeVar("T")

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_AXES = 4
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A tensor: ``shape`` with rows first, ``type`` one of ``types.TYPES``, data at ``offset`` of ``file``."""

    shape: tuple[int, ...]
    type: str
    file: Path
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row along the last axis."""
        block = TYPES[self.type]
        return self.shape[-1] // block.weights * block.size


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What a model's file, or all files it is split into, contain: ``metadata`` by key, ``tensors`` by name."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredBlocks]


def read_gguf(path: Path) -> GgufFile:
    """The heads of a file and of all files it is split into.

    Raises ``CheckpointError`` for a file that is not in this format, is cut short, or has tensors of a type that can't
    be read.
    """
    metadata: dict[str, Any] = {}
    tensors: dict[str, StoredBlocks] = {}
    for part in split_files(path):
        own, found = _read_head(part)
        metadata = {**own, **metadata}
        twice = tensors.keys() & found.keys()
        if twice:
            raise CheckpointError(f"{part}: {min(twice)} is also in {tensors[min(twice)].file.name}")
        tensors |= found
    count = metadata.get("split.tensors.count", len(tensors))
    if count != len(tensors):
        raise CheckpointError(f"{path} is split and should have {count} tensors in all, found {len(tensors)}")
    return GgufFile(metadata, tensors)


def split_files(path: Path) -> tuple[Path, ...]:
    """All files of the model that ``path`` belongs to, by their names; only itself if it is not split."""
    match = _SPLIT.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match[3])
    parts = tuple(path.with_name(f"{match[1]}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1))
    absent = [part.name for part in parts if not part.is_file()]
    if absent:
        raise CheckpointError(
            f"{path} is one of {count} parts, and {', '.join(absent)} is not beside it", param="model"
        )
    return parts


def _read_head(path: Path) -> tuple[dict[str, Any], dict[str, StoredBlocks]]:
    try:
        with os.fdopen(open_regular(path, WEIGHTS), "rb") as file:
            return _Head(path, file).read()
    except OSError as cause:
        raise CheckpointError(f"can't read {path}: {cause.strerror}", param="model") from cause


class _Head:
    """A head that is being read; all numbers are little endian."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file, self.size = path, file, path.stat().st_size

    def read(self) -> tuple[dict[str, Any], dict[str, StoredBlocks]]:
        magic, version = self._bytes(4), self._number("I")
        if magic != _MAGIC:
            raise CheckpointError(f"{self.path} is not a GGUF file: it begins with {magic!r}", param="model")
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{self.path} is GGUF version {version}; versions 2 and 3, little endian, can be read", param="model"
            )
        tensors, keys = self._number("Q"), self._number("Q")
        metadata = self._once([(self._text(), self._value(self._number("I"))) for _ in range(keys)])
        described = self._once(
            [(self._text(), (self._dimensions(), self._number("I"), self._number("Q"))) for _ in range(tensors)]
        )
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1:
            raise CheckpointError(f"{self.path}: general.alignment must be a positive number, got {alignment!r:.100}")
        start = -(-self.file.tell() // alignment) * alignment
        return metadata, {
            name: self._tensor(name, shape, number, start + offset)
            for name, (shape, number, offset) in described.items()
        }

    def _once(self, found: Sequence[tuple[str, T]]) -> dict[str, T]:
        """By name, of which none may be there twice."""
        made = dict(found)
        if len(made) < len(found):
            twice = next(name for name, count in Counter(name for name, _ in found).items() if count > 1)
            raise CheckpointError(f"{self.path} is damaged: it has {twice} twice", param="model")
        return made

    def _tensor(self, name: str, shape: tuple[int, ...], number: int, offset: int) -> StoredBlocks:
        kind = NAMES.get(number, f"number {number}")
        if kind not in TYPES:
            raise CheckpointError(
                f"{self.path}: {name} is of type {kind}; what can be read is {', '.join(TYPES)}", param="model"
            )
        tensor = StoredBlocks(shape, kind, self.path, offset)
        if not shape or 0 in shape or shape[-1] % TYPES[kind].weights:
            raise CheckpointError(f"{self.path}: {name} is {list(shape)}, which is not in blocks of {kind}")
        if offset + math.prod(shape[:-1]) * tensor.row_bytes > self.size:
            raise CheckpointError(f"{self.path} is cut short: {name} ends after its last byte", param="model")
        return tensor

    def _dimensions(self) -> tuple[int, ...]:
        """The shape with rows first: a file begins with the axis along which numbers are adjacent."""
        count = self._number("I")
        if count > _MOST_AXES:
            raise CheckpointError(
                f"{self.path} is damaged: a tensor has {count} axes, not 1 to {_MOST_AXES}", param="model"
            )
        return struct.unpack(f"<{count}Q", self._bytes(8 * count))[::-1]

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._number(self._code(kind))
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            return [self._text() for _ in range(self._sane(count))]
        code = self._code(kind)
        return list(struct.unpack(f"<{count}{code}", self._bytes(count * struct.calcsize(code))))

    def _code(self, kind: int) -> str:
        if kind not in _NUMBERS:
            raise CheckpointError(f"{self.path} has metadata of an unknown type {kind}", param="model")
        return _NUMBERS[kind]

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", errors="replace")

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._bytes(struct.calcsize(f"<{code}")))[0]

    def _bytes(self, count: int) -> bytes:
        data = self.file.read(self._sane(count))
        if len(data) < count:
            raise CheckpointError(f"{self.path} is cut short: its head does not end", param="model")
        return data

    def _sane(self, count: int) -> int:
        """Check a count: nothing in a file is longer than the file."""
        if count > self.size:
            raise CheckpointError(f"{self.path} is damaged: it claims to hold {count} of something", param="model")
        return count
