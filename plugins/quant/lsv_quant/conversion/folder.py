"""The files of a checkpoint that is written: weights in parts, their index, and everything else as it was."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lsv_base.errors import ConfigError
from lsv_runtime.weights.quantizer import LinearLayer
from lsv_runtime.worker.load.saved import copy_others

_PART_BYTES = 2 << 30


class FolderWriter:
    """Collects tensors by name, and writes them out in files of some gigabytes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, torch.Tensor] = {}
        self._size = 0
        self._files: list[tuple[Path, list[str]]] = []
        self.bytes = 0
        """Of all tensors."""

    def put(self, name: str, tensor: torch.Tensor) -> None:
        if self._held and self._size + tensor.nbytes > _PART_BYTES:
            self._write()
        self._held[name] = tensor.cpu().contiguous()
        self._size += tensor.nbytes
        self.bytes += tensor.nbytes

    def put_layer(self, layer: LinearLayer, bases: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> None:
        """A layer's tensors, whose first axis runs over its outputs, cut into the parts that it fuses.

        ``bases`` are the names of the parts in files.
        """
        whole: dict[str, torch.Tensor] = {}
        begin = 0
        for base, (width, spans, total) in zip(bases, _parts(layer), strict=True):
            for suffix, tensor in tensors.items():
                name = f"{base}.{suffix}"
                room = whole.setdefault(name, tensor.new_empty(total, *tensor.shape[1:]))
                rows = tensor[begin : begin + width]
                for start, stop in spans:
                    room[start:stop], rows = rows[: stop - start], rows[stop - start :]
            begin += width
        for name, tensor in whole.items():
            self.put(name, tensor)
            if tensor.dtype == torch.int32:  # words, which do not say how many inputs they hold
                self.put(name.removesuffix("packed") + "shape", torch.tensor([len(tensor), layer.inputs]))

    def finish(self, source: Path, config: Mapping[str, Any]) -> None:
        """Write what is left, the index, the files that lie beside the weights of ``source``, and config.json."""
        self._write()
        names = {}
        for number, (file, tensors) in enumerate(self._files, start=1):
            several = f"model-{number:05}-of-{len(self._files):05}.safetensors"
            final = several if len(self._files) > 1 else "model.safetensors"
            file.rename(self._folder / final)
            names.update(dict.fromkeys(tensors, final))
        if len(self._files) > 1:
            index = {"metadata": {"total_size": self.bytes}, "weight_map": names}
            _write_json(self._folder / "model.safetensors.index.json", index)
        copy_others(source, self._folder)
        _write_json(self._folder / "config.json", config)

    def _write(self) -> None:
        file = self._folder / f"part-{len(self._files)}"
        save_file(self._held, file, metadata={"format": "pt"})
        self._files.append((file, list(self._held)))
        self._held, self._size = {}, 0


def _parts(layer: LinearLayer) -> Iterator[tuple[int, tuple[tuple[int, int], ...], int]]:
    """Of each part its outputs, where they lie in the stored tensor, and how many that has."""
    for number, width in enumerate(layer.outputs):
        spans = layer.spans[number] if layer.spans else ((0, width),)
        yield width, spans, layer.stored[number][0] if layer.stored else width


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """A folder to be filled, which becomes ``target`` once it is complete.

    Raises ``ConfigError`` if ``target`` holds files, now or in the end, or can't be made.
    """
    _check_empty(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as cause:
        raise ConfigError(f"{target} can't be made: {cause.strerror}", param="output") from cause
    try:
        yield fresh
        fresh.chmod(0o755)
        _check_empty(target)
        fresh.replace(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _check_empty(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} exists and is not an empty folder: name another one", param="output")
