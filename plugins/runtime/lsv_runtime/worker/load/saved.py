"""Saving a checkpoint as vLLM's ``sharded_state``, for ``lsv_runtime.weights.sharded`` and for vLLM to load."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import torch
from safetensors.torch import save_file

from lsv.config import EngineConfig
from lsv.plugins.catalog import Catalog
from lsv.resolve.locate import read_config
from lsv_base.errors import ConfigError
from lsv_runtime.devices.communicator import Communicator, Group
from lsv_runtime.nn.dtypes import model_dtype
from lsv_runtime.weights.checkpoint import CheckpointSource, RenamedSource
from lsv_runtime.weights.fill import chunks_of
from lsv_runtime.weights.place import Piece, TensorSlot
from lsv_runtime.weights.sharded import EMBEDDING, FUSED, HEAD, PATTERN, check_pattern, file_name, padded_vocabulary
from lsv_runtime.weights.ties import TiedSource
from lsv_runtime.worker.load.loaded import declare_stored, open_source

LARGEST = 5 << 30
"""Bytes of a file, unless it is said."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")
"""Endings of files that are not copied."""


class _Absent(Communicator):
    """Stands for ranks that are not there: only what they hold is asked."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        raise NotImplementedError

    def broadcast(self, x: torch.Tensor, source: int = 0) -> torch.Tensor:
        raise NotImplementedError

    def self_test(self) -> None:
        raise NotImplementedError


def save_sharded_state(
    config: EngineConfig, catalog: Catalog, path: Path, *, pattern: str = PATTERN, max_size: int = LARGEST
) -> list[Path]:
    """Write the weights of each of the configuration's ranks, in its dtype, and copy everything else of the checkpoint.

    Nothing is computed and no device is needed. Returns the files of weights. Raises ``ConfigError`` for weights that
    are quantised, stack experts or lie in several checkpoints, and for a folder that is the checkpoint's own.
    """
    folder = Path(config.model)
    if config.adapters is not None:
        raise ConfigError("Saving with enable_lora=True is not supported!", param="enable_lora")
    if config.quantization is not None:
        raise ConfigError(
            f"only plain weights are saved by rank, and these are {config.quantization}: weight formats are read from "
            "their own checkpoints, or made of plain ones while these are loaded",
            param="quantization",
        )
    if elsewhere := [part.folder for part in config.parts if part.folder]:
        raise ConfigError(
            f"only one checkpoint is saved by rank, and this model is also read from {', '.join(elsewhere)}",
            param="model",
        )
    if path.resolve() == folder.resolve():
        raise ConfigError(f"{path} is the checkpoint itself: name another folder", param="output")
    check_pattern(pattern)
    path.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for rank in range(config.topology.tensor):
        files += _save_rank(config, catalog, rank, path, pattern, max_size)
    copy_others(folder, path)
    return files


def copy_others(folder: Path, target: Path) -> None:
    """Everything but weights, and what is hidden."""
    for found in folder.iterdir():
        if found.name.startswith((".", "__")) or found.resolve() == target.resolve():
            continue
        if found.is_dir():
            shutil.copytree(found, target / found.name, dirs_exist_ok=True)
        elif not found.name.endswith(_WEIGHTS):
            shutil.copyfile(found, target / found.name)


def _save_rank(
    config: EngineConfig, catalog: Catalog, rank: int, path: Path, pattern: str, max_size: int
) -> Iterator[Path]:
    held: dict[str, torch.Tensor] = {}
    part = size = 0
    for name, tensor in _state(config, catalog, rank):
        if held and size + tensor.nbytes > max_size:
            yield _write(held, path / file_name(pattern, rank, part))
            part, size, held = part + 1, 0, {}
        held[name] = tensor
        size += tensor.nbytes
    yield _write(held, path / file_name(pattern, rank, part))


def _write(tensors: dict[str, torch.Tensor], file: Path) -> Path:
    save_file(tensors, file)
    return file


def _state(config: EngineConfig, catalog: Catalog, rank: int) -> Iterator[tuple[str, torch.Tensor]]:
    """What a rank holds, one tensor after the other."""
    group = Group("tp", tuple(range(config.topology.tensor)), rank, "")
    declared = declare_stored(config, catalog, communicator=_Absent(group) if group.size > 1 else None)
    asked = bool(read_config(Path(config.model), config.overrides).get("tie_word_embeddings"))
    tied = asked and bool(declared.ties)
    with closing(open_source(config, declared, catalog)) as opened:
        source = TiedSource(RenamedSource(opened, declared.rename), declared.ties)
        for slot in declared.slots:
            name = _fused_name(slot)
            if name in (EMBEDDING, HEAD):
                yield HEAD if tied else name, _vocabulary(slot.pieces[0], source, group, model_dtype(config.dtype))
            elif any(piece.name in source.tensors() for piece in slot.pieces) or not slot.optional:
                yield name, _fill(slot, source)


def _fused_name(slot: TensorSlot) -> str:
    """What vLLM calls a tensor. Raises ``ConfigError`` for one that it holds in another form."""
    places, suffixes = zip(*(piece.name.rsplit(".", 1) for piece in slot.pieces), strict=True)
    above, layers = {place.rpartition(".")[0] for place in places}, tuple(place.rpartition(".")[2] for place in places)
    first = slot.pieces[0]
    known = "experts" not in places[0].split(".") and first.index is None and not first.transposed
    if known and len(places) == 1:
        return slot.pieces[0].name
    for fused, parts in FUSED.items():
        if known and layers == parts and len(above) == 1:
            return f"{above.pop()}.{fused}.{suffixes[0]}"
    raise ConfigError(
        f"{slot.pieces[0].name} is one that vLLM stacks with others: only dense models are saved by rank", param="model"
    )


def _fill(slot: TensorSlot, source: CheckpointSource) -> torch.Tensor:
    into = torch.zeros(slot.parameter.shape, dtype=slot.parameter.dtype)
    for piece in slot.pieces:
        for chunk in chunks_of(piece, source.tensors()[piece.name]):
            chunk.copy(source, into, torch.Tensor.copy_)
    return into


def _vocabulary(piece: Piece, source: CheckpointSource, group: Group, dtype: torch.dtype) -> torch.Tensor:
    """A rank's rows of an embedding or a head, cut as vLLM cuts them. Raises ``ConfigError`` where that is uneven."""
    total, *others = piece.shape
    share, left = divmod(padded_vocabulary(total), group.size)
    if left:
        raise ConfigError(
            f"{padded_vocabulary(total)} rows of {piece.name} can't be split over {group.size} ranks",
            param="tensor_parallel_size",
        )
    first = min(group.rank * share, total)
    last = min(first + share, total)
    rows = torch.zeros((share, *others), dtype=dtype)
    if first < last:
        rows[: last - first] = source.read(piece.name, first, last)
    return rows
