"""Which modules an adapter's tensors belong to, checked against its configuration. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lsv.adapters.peft import PeftConfig
from lsv.adapters.reading.messages import Module, Stored
from lsv_base.errors import CheckpointError

_MODULE = r"(?:base_model\.model\.)?(?P<module>.+?)"
_LOW = re.compile(
    rf"{_MODULE}\.(?P<kind>lora_(?:A|B|embedding_A|embedding_B|magnitude_vector))(?:\.default)?(?:\.weight)?"
)
_COPY = re.compile(rf"{_MODULE}(?:\.(?P<kind>base_layer)|\.modules_to_save(?:\.default)?)?\.weight")
_SIDES = (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B"))
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SHOWN = 8

Named = tuple[str, Stored]
"""A tensor's name in the file, with its dtype and shape."""


def find_modules(path: Path, tensors: Mapping[str, Stored], config: PeftConfig) -> list[tuple[Module, tuple[str, ...]]]:
    """The modules of an adapter, each with its tensors' names in the file, in the order of ``Module.tensors``.

    Raises ``CheckpointError`` for an unsupported tensor, which would otherwise be dropped silently, and for a tensor
    that contradicts the configuration.
    """
    found, bases = _group(path, tensors)
    for name in config.saved:
        if not any("copy" in kinds and f".{module}".endswith(f".{name}") for module, kinds in found.items()):
            raise CheckpointError(f"{path} has no weight for {name}, which modules_to_save lists")
    return [
        (_describe(path, module, kinds, bases.get(module), config), tuple(name for name, _ in kinds.values()))
        for module, kinds in found.items()
    ]


def _group(path: Path, tensors: Mapping[str, Stored]) -> tuple[dict[str, dict[str, Named]], dict[str, tuple[int, ...]]]:
    """Each module's tensors by kind, and the shapes of the base weights."""
    found: dict[str, dict[str, Named]] = {}
    bases: dict[str, tuple[int, ...]] = {}
    others: list[str] = []

    def keep(module: str, kind: str, name: str, stored: Stored) -> None:
        kinds = found.setdefault(module, {})
        if kind in kinds:
            raise CheckpointError(f"{path} has the {kind} of {module} twice, under different names")
        kinds[kind] = (name, stored)

    for name, stored in tensors.items():
        low, copy = _LOW.fullmatch(name), _COPY.fullmatch(name)
        if low is not None:
            _check_form(path, name, stored, 1 if low["kind"] == "lora_magnitude_vector" else 2)
            keep(low["module"], low["kind"], name, stored)
        elif copy is not None and copy["kind"]:
            if copy["module"] in bases:
                raise CheckpointError(f"{path} has the base weight of {copy['module']} twice, under different names")
            bases[copy["module"]] = stored.shape
            found.setdefault(copy["module"], {})
        elif copy is not None and len(stored.shape) == 2:
            _check_form(path, name, stored, 2)
            keep(copy["module"], "copy", name, stored)
        else:
            others.append(name)
    if others:
        others.sort()
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise CheckpointError(
            f"{path}: {', '.join(others[:_SHOWN])}{more}: unsupported tensors; lsv serves lora_A, lora_B, magnitudes, "
            "and copies of embeddings and heads. Merge the adapter into the model's weights instead"
        )
    if not found:
        raise CheckpointError(f"{path} is not a LoRA adapter: no tensor is called …lora_A.weight")
    return found, bases


def _check_form(path: Path, name: str, stored: Stored, axes: int) -> None:
    if stored.dtype not in _FLOATS or len(stored.shape) != axes:
        raise CheckpointError(
            f"{path}: {name} is {stored.dtype} {list(stored.shape)}, expected "
            f"a floating-point {'matrix' if axes == 2 else 'vector'}"
        )


def _describe(
    path: Path, module: str, kinds: Mapping[str, Named], base: tuple[int, ...] | None, config: PeftConfig
) -> Module:
    tensors = {kind: stored for kind, (_, stored) in kinds.items()}
    if not any(kind.startswith("lora_") for kind in tensors):
        return Module(module, tensors, base=base)
    sides = _SIDES["lora_embedding_A" in tensors]
    _check_kinds(path, module, tensors, config, sides)
    if not config.means(module):
        raise CheckpointError(f"{path} has weights for {module}, which target_modules does not include")
    a, b = (tensors[side].shape for side in sides)
    rank = config.rank_of(module)
    if a[0] != rank or b[1] != rank:
        raise CheckpointError(
            f"{path}: {module} has lora_A {list(a)} and lora_B {list(b)}, but the configuration gives rank {rank}"
        )
    if config.magnitudes and tensors["lora_magnitude_vector"].shape != b[:1]:
        raise CheckpointError(
            f"{path}: {module} has {b[0]} outputs, but its lora_magnitude_vector has "
            f"{tensors['lora_magnitude_vector'].shape[0]} values"
        )
    return Module(module, tensors, config.scale_of(module), base)


def _check_kinds(
    path: Path, module: str, tensors: Mapping[str, Stored], config: PeftConfig, sides: Sequence[str]
) -> None:
    """Raises ``CheckpointError`` if a module lacks a tensor or has one that the configuration does not expect."""
    expected = {*sides, *(("lora_magnitude_vector",) if config.magnitudes else ())}
    there = {kind for kind in tensors if kind.startswith("lora_")}
    if expected - there:
        raise CheckpointError(f"{path}: {module} has no {' and no '.join(sorted(expected - there))}")
    if there - expected:
        raise CheckpointError(
            f"{path}: {module} has {' and '.join(sorted(there - expected))}, which the configuration does not expect"
        )
