"""Checkpoints as ``torch.save`` writes them (``pytorch_model.bin``), read without running anything that is in them."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import WEIGHTS, check_regular, read_regular
from lsv_runtime.weights.checkpoint import TensorInfo

log = logging.getLogger(__name__)

INDEX = "pytorch_model.bin.index.json"
_SINGLE = "pytorch_model.bin"
_OTHERS = ("training_args", "optimizer", "scheduler", "rng_state", "scaler")
"""What stands beside the weights of a training run."""


def pickled_files(folder: Path) -> list[Path]:
    """The files of such a checkpoint; none where the folder holds no such one. Raises ``CheckpointError``."""
    index, single = folder / INDEX, folder / _SINGLE
    if single.is_file():
        if index.is_file():
            log.warning("%s has %s, so its %s is not read, as in transformers", folder, _SINGLE, INDEX)
        return [single]
    if index.is_file():
        return [folder / name for name in _indexed(index)]
    found = sorted((*folder.glob("*.bin"), *folder.glob("*.pt")))
    return [file for file in found if not file.name.startswith(_OTHERS)]


def _indexed(index: Path) -> list[str]:
    try:
        names = sorted(set(json.loads(read_regular(index))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise CheckpointError(f"{index} is not an index of weights: {cause}") from cause
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise CheckpointError(f"{index}: weight_map must map tensor names to names of files in the same folder")
    return names


class PickledSource:
    """The tensors of such files. Newer ones are mapped, so that a tensor takes memory as it is read; older ones are
    read whole. Raises ``CheckpointError`` for a folder without such files, and for one that holds more than tensors.
    """

    def __init__(self, folder: Path, files: Sequence[Path] = ()) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        files = files or pickled_files(folder)
        if not files:
            raise CheckpointError(f"{folder} has no {_SINGLE} and no other weights that torch has saved")
        for file in files:
            self._tensors |= load_tensors(file)
        self._infos = {name: TensorInfo(tuple(one.shape), one.dtype) for name, one in self._tensors.items()}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        tensor = self._tensors[name]
        return tensor[first:last].contiguous() if tensor.ndim else tensor

    def close(self) -> None:
        self._tensors.clear()


def load_tensors(file: Path, opened: BinaryIO | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a file by name. Those that share memory are told apart: nothing writes to them.

    A file that is ``opened`` already is read whole. Raises ``CheckpointError``.
    """
    try:
        mapped = opened is None and zipfile.is_zipfile(check_regular(file, WEIGHTS))
        loaded: Any = torch.load(opened or file, map_location="cpu", weights_only=True, mmap=mapped)
    except FileNotFoundError:
        raise CheckpointError(f"there is no {file}, which the index names") from None
    except CheckpointError:
        raise
    except Exception as cause:  # torch raises whatever its reader meets in a file that is damaged
        why = (str(cause).splitlines() or [""])[0]
        if type(cause).__name__ == "UnpicklingError":
            raise CheckpointError(
                f"{file} holds more than weights, which could be a program: {why:.200}; convert it to safetensors "
                "where you trust it"
            ) from cause
        raise CheckpointError(f"{file} can't be read: {type(cause).__name__}: {why:.200}") from cause
    for key in ("state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
        raise CheckpointError(f"{file} must hold tensors by name, got {type(loaded).__name__}")
    return {name: one.detach() for name, one in loaded.items() if isinstance(one, torch.Tensor)}
