"""Where weights come from: safetensors files, read with pread and never mapped, or random numbers."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import WEIGHTS, open_regular, read_regular, read_text
from lsv_runtime.weights.header import TYPES, parse_header
from lsv_runtime.weights.regions import Region, runs_of

if TYPE_CHECKING:
    from lsv_runtime.weights.place import TensorSlot

log = logging.getLogger(__name__)

_SHOWN = 8
_WORTH = 8 << 10
"""Bytes that are worth a system call to pass over them: copied and checked, they take 3 µs."""
_DRAWN = 1_048_573
"""Random numbers that dummy weights are made of, a prime."""
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FILE_NAME = re.compile(r"[^/\\\x00-\x1f\ud800-\udfff]+\.safetensors")
"""A file in the checkpoint's own folder."""
_NAMED_FILE = re.compile(r'"([^"]+\.safetensors)"')
_DTYPES = {kind: getattr(torch, kind.name) for kind in TYPES.values()}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A stored tensor without its data."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class CheckpointSource(Protocol):
    """Tensors by name. Knows all names and shapes before it reads a byte of data."""

    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        """Rows ``[first, last)`` of a tensor's first axis, on the CPU; a tensor without axes has one row.

        Several threads may read at once. A tensor is valid until its thread reads again.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class RegionSource(CheckpointSource, Protocol):
    """One that reads little more of a tensor than a rank needs. A subclass that changes what ``read`` gives changes
    both.
    """

    def read_region(self, name: str, region: Region) -> torch.Tensor:
        """A part of a tensor, as ``read`` gives rows of it; the region names the first axis at least."""
        ...


def read_region(source: CheckpointSource, name: str, region: Region) -> torch.Tensor:
    """A part of a tensor; from a source that gives rows alone they are read whole. See ``RegionSource.read_region``."""
    rows, *others = region
    if not others:
        return source.read(name, rows.start, rows.stop)
    if isinstance(source, RegionSource):
        return source.read_region(name, region)
    return source.read(name, rows.start, rows.stop)[(slice(None), *others)]


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where in a file a tensor's data is."""

    info: TensorInfo
    file: int
    offset: int


class _Scratch(threading.local):
    """Memory that a thread reads into repeatedly: it stays in the core's cache and saves calls of malloc."""

    room = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> torch.Tensor:
        """uint8 [size], not initialised."""
        if size > len(self.room):
            self.room = torch.empty(size, dtype=torch.uint8)
        return self.room[:size]


class SafetensorsSource:
    """The safetensors files of a folder: ``files``, or ``model.safetensors``, or the files of its index, or all.

    Raises ``CheckpointError`` for a folder without such files and for a file that contradicts its own header.
    """

    def __init__(self, folder: Path, files: Sequence[Path] = ()) -> None:
        self._files: list[tuple[Path, int]] = []
        self._entries: dict[str, _Entry] = {}
        self._infos: dict[str, TensorInfo] = {}
        self._scratch = _Scratch()
        try:
            paths, indexed = (files, {}) if files else _find_files(folder)
            for path in paths:
                self._open(path)
            absent = sorted(indexed.keys() - self._entries.keys())
            if absent:
                raise CheckpointError(f"{folder}: {_INDEX} names tensors that no file has: {some_of(absent)}")
        except BaseException:
            self.close()
            raise

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        entry = self._entries[name]
        shape = (last - first, *entry.info.shape[1:]) if entry.info.shape else ()
        row = math.prod(entry.info.shape[1:]) * entry.info.dtype.itemsize
        path, descriptor = self._files[entry.file]
        data = self._scratch.take(math.prod(shape) * entry.info.dtype.itemsize)
        _read_exactly(descriptor, memoryview(data.numpy()), entry.offset + first * row, path)  # type: ignore[arg-type]
        return data.view(entry.info.dtype).reshape(shape)

    def read_region(self, name: str, region: Region) -> torch.Tensor:
        """What is too short to be worth passing over is read, too, and left out."""
        entry, (rows, *others) = self._entries[name], region
        shape, size = entry.info.shape, entry.info.dtype.itemsize
        begins, run = runs_of(region, shape)
        row = math.prod(shape[1:])
        if ((rows.stop - rows.start) * row - len(begins) * run) * size < len(begins) * _WORTH:
            return self.read(name, rows.start, rows.stop)[(slice(None), *others)]
        data = self._read_runs(entry, [begin * size for begin in begins], run * size)
        widths = (part.stop - part.start for part in others)
        return data.view(entry.info.dtype).reshape(rows.stop - rows.start, *widths, *shape[len(region) :])

    def _read_runs(self, entry: _Entry, begins: Sequence[int], length: int) -> torch.Tensor:
        """Runs of so many bytes, uint8. A disk brings what is between them, too: it reads pages, and one by one they
        take longer than all of them together.
        """
        path, descriptor = self._files[entry.file]
        span = begins[-1] - begins[0] + length
        os.posix_fadvise(descriptor, entry.offset + begins[0], span, os.POSIX_FADV_WILLNEED)
        data = self._scratch.take(len(begins) * length)
        room = memoryview(data.numpy())  # type: ignore[arg-type]
        for number, begin in enumerate(begins):
            _read_exactly(descriptor, room[number * length : (number + 1) * length], entry.offset + begin, path)
        return data

    def close(self) -> None:
        for _, descriptor in self._files:
            os.close(descriptor)
        self._files.clear()

    def _open(self, path: Path) -> None:
        try:
            descriptor = open_regular(path, WEIGHTS)
        except FileNotFoundError as cause:
            raise CheckpointError(f"can't open {path}: {cause.strerror}") from cause
        self._files.append((path, descriptor))
        for entry in parse_header(path, descriptor):
            name, info = entry.name, TensorInfo(entry.shape, _DTYPES[entry.type])
            if name in self._entries:
                raise CheckpointError(
                    f"{path}: tensor {name} is also in {self._files[self._entries[name].file][0].name}"
                )
            self._infos[name] = info
            self._entries[name] = _Entry(info, len(self._files) - 1, entry.offset)


def _indexed(folder: Path) -> Mapping[str, str]:
    """Tensor name -> file name of the index; empty where there is none."""
    path = folder / _INDEX
    if not path.exists():
        return {}
    try:
        names = json.loads(read_regular(path))["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as cause:
        raise CheckpointError(f"{path} is not a safetensors index: {cause}") from cause
    if not isinstance(names, dict) or not all(isinstance(n, str) and _FILE_NAME.fullmatch(n) for n in names.values()):
        raise CheckpointError(f"{path}: weight_map must map tensor names to names of files in the same folder")
    return names


def _names_others(index: Path) -> bool:
    """Whether there is an index that names other files than the single one."""
    try:
        return bool({*_NAMED_FILE.findall(read_text(index, errors="replace"))} - {_SINGLE})
    except OSError:
        return False


def _find_files(folder: Path) -> tuple[list[Path], Mapping[str, str]]:
    """The files of a folder in the order of transformers, and the index that names them: a single file comes first."""
    single = folder / _SINGLE
    if single.exists():
        if _names_others(folder / _INDEX):
            log.warning("%s has %s, so its %s is not read, as in transformers", folder, _SINGLE, _INDEX)
        return [single], {}
    indexed = _indexed(folder)
    if indexed:
        return [folder / name for name in sorted(set(indexed.values()))], indexed
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} has no *.safetensors: give a safetensors checkpoint, or --load-format dummy")
    return files, {}


def _read_exactly(descriptor: int, room: memoryview, offset: int, path: Path) -> None:
    """Fill ``room``, of bytes, from a file; pread may give less than it was asked for."""
    while room.nbytes:
        count = os.preadv(descriptor, [room], offset)
        if count == 0:
            raise CheckpointError(f"{path} became shorter while it was being read")
        room, offset = room[count:], offset + count


def some_of(names: Sequence[str]) -> str:
    """The first names of a list for a message, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


class RenamedSource:
    """Another source, with its tensors renamed."""

    def __init__(self, source: CheckpointSource, rename: Callable[[str], str]) -> None:
        self.source = source
        self._names = {rename(name): name for name in source.tensors()}
        self._infos = {rename(name): info for name, info in source.tensors().items()}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def stored_name(self, name: str) -> str:
        """What the files call a tensor; ``name`` itself where they have none for it."""
        found = self._names.get(name, name)
        return self.source.stored_name(found) if isinstance(self.source, RenamedSource) else found

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        return self.source.read(self._names[name], first, last)

    def read_region(self, name: str, region: Region) -> torch.Tensor:
        return read_region(self.source, self._names[name], region)

    def close(self) -> None:
        self.source.close()


class JoinedSource:
    """Tensors of several ``sources``: ``places`` says of each by its name whose it is, and its name there."""

    def __init__(self, sources: Iterable[CheckpointSource], places: Mapping[str, tuple[CheckpointSource, str]]) -> None:
        self._sources, self._places = tuple(sources), places
        self._infos = {name: source.tensors()[theirs] for name, (source, theirs) in places.items()}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        source, theirs = self._places[name]
        return source.read(theirs, first, last)

    def read_region(self, name: str, region: Region) -> torch.Tensor:
        source, theirs = self._places[name]
        return read_region(source, theirs, region)

    def close(self) -> None:
        for source in self._sources:
            source.close()


class DummySource:
    """Random weights for what a model declared: small normal numbers, or any integers; reproducible by seed.

    They are places of one table of random numbers, each tensor from another place on: drawing billions of numbers
    would take minutes. As its length is prime, no two rows of a matrix are alike.
    """

    def __init__(self, slots: Iterable[TensorSlot], seed: int = 0) -> None:
        self.seed = seed
        self._infos = {
            piece.name: TensorInfo(piece.shape, slot.parameter.dtype)
            for slot in slots
            for piece in slot.pieces
            if not slot.optional
        }
        self._tables: dict[torch.dtype, torch.Tensor] = {}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        info = self._infos[name]
        shape = (last - first, *info.shape[1:]) if info.shape else ()
        count, table = math.prod(shape), self._table(info.dtype)
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        start = (int.from_bytes(digest[:8], "little") + first * math.prod(shape[1:])) % _DRAWN
        if start + count > _DRAWN:
            table = table.view(torch.uint8).repeat(-(-(start + count) // _DRAWN)).view(info.dtype)
        return table[start : start + count].clone().view(shape)

    def _table(self, dtype: torch.dtype) -> torch.Tensor:
        """``_DRAWN`` numbers of the dtype."""
        if dtype not in self._tables:
            generator = torch.Generator().manual_seed(self.seed)
            if dtype.is_floating_point:
                table = torch.randn(_DRAWN, generator=generator).mul_(0.02).to(dtype)
            else:
                bounds = torch.iinfo(dtype)
                table = torch.randint(bounds.min, bounds.max, (_DRAWN,), generator=generator, dtype=dtype)
            self._tables[dtype] = table
        return self._tables[dtype]

    def close(self) -> None:
        """Nothing is open."""
