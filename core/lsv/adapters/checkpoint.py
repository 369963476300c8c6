"""An adapter's tensors, by the module they belong to, as PEFT stores them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from lsv.adapters.peft import PeftConfig, read_config, weights_file
from lsv.errors import CheckpointError
from lsv.ops import dtype_name
from lsv.weights.checkpoint import CheckpointSource, SafetensorsSource, TensorInfo, some_of
from lsv.weights.finite import check_finite
from lsv.weights.pickled import PickledSource

_MODULE = r"(?:base_model\.model\.)?(?P<module>.+?)"
_LOW = re.compile(
    rf"{_MODULE}\.(?P<kind>lora_(?:A|B|embedding_A|embedding_B|magnitude_vector))(?:\.default)?(?:\.weight)?"
)
_COPY = re.compile(rf"{_MODULE}(?:\.(?P<kind>base_layer)|\.modules_to_save(?:\.default)?)?\.weight")
_SIDES = (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B"))
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class Pair:
    """What an adapter adds to a linear layer: ``x A^T B^T``, scaled. Of an embedding, x is one at its ids."""

    a: torch.Tensor
    """[rank, inputs]."""
    b: torch.Tensor
    """float32 [outputs, rank]: the scale is part of it."""
    magnitude: torch.Tensor | None = None
    """float32 [outputs]: the lengths that the rows of the whole weight are brought to (DoRA); None leaves them."""
    embeds: bool = False
    """Whether it was trained as an embedding's."""
    copy: torch.Tensor | None = None
    """A weight that takes the place of the module's own; ``a`` and ``b`` may then be empty."""
    base: tuple[int, ...] | None = None
    """The shape of the base's weight, where PEFT has stored that, too."""


def read_adapter(folder: Path, max_rank: int) -> dict[str, Pair]:
    """The pairs of an adapter by the name of their module, as transformers calls it.

    Raises ``CheckpointError`` for files that are missing or damaged, by name for what is not served, for a rank over
    ``max_rank``, and for tensors that contradict the configuration.
    """
    config = read_config(folder)
    if config.largest_rank > max_rank:
        raise CheckpointError(
            f"{folder}: the adapter has rank {config.largest_rank}, and --max-lora-rank is {max_rank}: raise it"
        )
    path = weights_file(folder)
    source: CheckpointSource = SafetensorsSource(folder, [path]) if path.suffix == ".safetensors" else _pickled(path)
    with closing(source):
        return _pair(path, _read(path, source), config)


def _pickled(path: Path) -> PickledSource:
    return PickledSource(path.parent, [path])


def _read(path: Path, source: CheckpointSource) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of every module by their kind; ``copy`` is one of its whole weight, ``base`` of that of the base.

    Tensors of another kind are refused: they would be left out silently.
    """
    found: dict[str, dict[str, torch.Tensor]] = {}
    others: list[str] = []

    def keep(module: str, kind: str, tensor: torch.Tensor) -> None:
        tensors = found.setdefault(module, {})
        if kind in tensors:
            raise CheckpointError(f"{path} has the {kind} of {module} twice, under different names")
        tensors[kind] = tensor

    for name, info in source.tensors().items():
        low, copy = _LOW.fullmatch(name), _COPY.fullmatch(name)
        if low is not None:
            axes = 1 if low["kind"] == "lora_magnitude_vector" else 2
            keep(low["module"], low["kind"], _take(path, source, name, info, axes))
        elif copy is not None and copy["kind"]:
            keep(copy["module"], "base", torch.empty(info.shape, device="meta"))
        elif copy is not None and len(info.shape) == 2:
            keep(copy["module"], "copy", _take(path, source, name, info, 2))
        else:
            others.append(name)
    if others:
        raise CheckpointError(
            f"{path}: {some_of(sorted(others))}: what is served is lora_A, lora_B, magnitudes, and copies of "
            "embeddings and heads, not of norms or biases; merge the adapter into its model's weights"
        )
    if not found:
        raise CheckpointError(f"{path} holds no adapter: no tensor is called …lora_A.weight")
    return found


def _take(path: Path, source: CheckpointSource, name: str, info: TensorInfo, axes: int) -> torch.Tensor:
    if info.dtype not in _FLOATS or len(info.shape) != axes:
        raise CheckpointError(
            f"{path}: {name} is {dtype_name(info.dtype)} {list(info.shape)}, expected "
            f"a {'matrix' if axes == 2 else 'vector'} of floating point"
        )
    tensor = source.read(name, 0, info.shape[0]).clone()
    check_finite(name, tensor, tensor.dtype)
    return tensor


def _pair(path: Path, found: dict[str, dict[str, torch.Tensor]], config: PeftConfig) -> dict[str, Pair]:
    for name in config.saved:
        if not any("copy" in tensors and f".{module}".endswith(f".{name}") for module, tensors in found.items()):
            raise CheckpointError(f"{path} has no weight of {name}, which modules_to_save names")
    return {module: _join(path, module, tensors, config) for module, tensors in found.items()}


def _join(path: Path, module: str, tensors: Mapping[str, torch.Tensor], config: PeftConfig) -> Pair:
    base, copy = tensors.get("base"), tensors.get("copy")
    shape = None if base is None else tuple(base.shape)
    if not any(kind.startswith("lora_") for kind in tensors):
        nothing = torch.empty((0, 0))
        return Pair(nothing, nothing, copy=copy, base=shape)
    embeds = "lora_embedding_A" in tensors
    _check_kinds(path, module, tensors, config, _SIDES[embeds])
    if not config.means(module):
        raise CheckpointError(f"{path} has weights for {module}, which target_modules does not name")
    a, b = (tensors[side] for side in _SIDES[embeds])
    rank = config.rank_of(module)
    if len(a) != rank or b.shape[1] != rank:
        raise CheckpointError(
            f"{path}: {module} has lora_A {list(a.shape)} and lora_B {list(b.shape)}, and by the configuration its "
            f"rank is {rank}"
        )
    magnitude = tensors["lora_magnitude_vector"].float() if config.magnitudes else None
    if magnitude is not None and len(magnitude) != len(b):
        raise CheckpointError(
            f"{path}: {module} gives {len(b)} outputs, and its lora_magnitude_vector has {len(magnitude)}"
        )
    return Pair(a, b.float() * config.scale_of(module), magnitude, embeds, copy, shape)


def _check_kinds(
    path: Path, module: str, tensors: Mapping[str, torch.Tensor], config: PeftConfig, sides: tuple[str, str]
) -> None:
    """Raises ``CheckpointError`` where a module lacks a tensor, or has one that the configuration does not expect."""
    expected = {*sides, *(("lora_magnitude_vector",) if config.magnitudes else ())}
    there = {kind for kind in tensors if kind.startswith("lora_")}
    if expected - there:
        raise CheckpointError(f"{path}: {module} has no {' and no '.join(sorted(expected - there))}")
    if there - expected:
        raise CheckpointError(
            f"{path}: {module} has {' and '.join(sorted(there - expected))}, which the configuration does not expect"
        )
