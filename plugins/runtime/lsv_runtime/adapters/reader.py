"""The process that reads an adapter: ``python -m lsv_runtime.adapters.reader CONFIG WEIGHTS FD PARENT``.

The process receives open files and cannot open any itself. It imports torch only for files that torch saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lsv.adapters import peft
from lsv.adapters.reading.messages import Begin, Command, Digest, Layout, Look, Piece, Read, Reply, Stored
from lsv_base.errors import CheckpointError
from lsv_base.processes.side.main import Loaded, run
from lsv_base.untrusted.files import read_descriptor
from lsv_runtime.adapters.layout import find_modules
from lsv_runtime.weights.header import Entry, parse_header

_PIECE = 4 << 20

Pieces = Callable[[str], Iterator[bytes]]
"""Yields the data of the named tensor."""


class Reader:
    """Carries out commands on the files of one adapter."""

    def __init__(self, begin: Begin, config: int, weights: int) -> None:
        self._folder, self._pickled = Path(begin.folder), begin.pickled
        self._path = self._folder / begin.weights
        self._config, self._weights = config, weights

    def carry_out(self, command: Command) -> Iterator[Reply]:
        with peft.reading(self._folder):
            path = self._folder / peft.CONFIG
            text = read_descriptor(path, self._config, peft.CONFIG_BYTES)
            config = peft.parse_config(path, text)
            match command:
                case Look():
                    pass
                case Read(most):
                    yield from self._read(config, most)
            yield Digest(peft.digest_of(text, self._path, self._weights))

    def _read(self, config: peft.PeftConfig, max_rank: int) -> Iterator[Reply]:
        if config.largest_rank > max_rank:
            raise CheckpointError(
                f"{self._folder}: the adapter has rank {config.largest_rank}, over the limit of {max_rank}: "
                "raise --max-lora-rank"
            )
        tensors, pieces = _read_pickled(self._path, self._weights) if self._pickled else self._read_safetensors()
        modules = find_modules(self._path, tensors, config)
        yield Layout(tuple(module for module, _ in modules))
        for _, names in modules:
            for name in names:
                yield from map(Piece, pieces(name))

    def _read_safetensors(self) -> tuple[Mapping[str, Stored], Pieces]:
        entries: dict[str, Entry] = {}
        left = os.fstat(self._weights).st_size
        for entry in parse_header(self._path, self._weights):
            entries[entry.name] = entry
            left -= entry.size
        if left < 0:
            raise CheckpointError(f"{self._path} is damaged: its tensors overlap")

        def pieces(name: str) -> Iterator[bytes]:
            begin, end = entries[name].offset, entries[name].offset + entries[name].size
            while begin < end:
                data = os.pread(self._weights, min(_PIECE, end - begin), begin)
                if not data:
                    raise CheckpointError(f"{self._path} was truncated while it was being read")
                yield data
                begin += len(data)

        return {name: Stored(entry.type.name, entry.shape) for name, entry in entries.items()}, pieces


def _read_pickled(path: Path, descriptor: int) -> tuple[Mapping[str, Stored], Pieces]:
    import torch

    from lsv_runtime.ops import dtype_name
    from lsv_runtime.weights.pickled import load_tensors

    with os.fdopen(descriptor, "rb", closefd=False) as file:
        tensors = load_tensors(path, file)

    def pieces(name: str) -> Iterator[bytes]:
        data = tensors[name].contiguous().flatten().view(torch.uint8)
        for begin in range(0, len(data), _PIECE):
            yield data[begin : begin + _PIECE].numpy().tobytes()

    return {name: Stored(dtype_name(one.dtype), tuple(one.shape)) for name, one in tensors.items()}, pieces


def _load(begin: Begin) -> Loaded:
    if begin.pickled:
        import lsv_runtime.weights.pickled  # noqa: F401  before the process is confined
    return Loaded(Reader(begin, int(sys.argv[1]), int(sys.argv[2])).carry_out)


if __name__ == "__main__":
    sys.exit(run("adapter", Begin | Command, _load))
