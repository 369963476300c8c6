"""How checkpoints hold a transformers model: under which names, and which parts of them make up which parameter.

Source: transformers' own conversion rules (``conversion_mapping``), which its ``from_pretrained`` follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    Concatenate,
    Interleave,
    MergeModulelist,
    Split,
    Transpose,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    revert_weight_conversion,
)

from lsv_models.generic.refusal import Refused
from lsv_runtime.weights.naming import Prefixes
from lsv_runtime.weights.place import Piece

_BY_MEDIUM = "ErnieFuseAndSplitTextVisionExperts"
"""A rule that gives the first half of the experts to text, and the second to images."""
_UNPADDED = "Inkling2UnpadVocab"
"""A rule that takes the first rows of a matrix that is stored with one for every token; transformers 5.24 has it."""


class Layout:
    """Names and pieces of a model's parameters. Make it while the model is as transformers built it."""

    def __init__(self, lm: PreTrainedModel, prefix: str) -> None:
        rules: Sequence[WeightTransform] = get_model_conversion_mapping(lm)
        self.prefix = prefix
        self.renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        self.converters = [(rule, rule.reverse_transform()) for rule in rules if isinstance(rule, WeightConverter)]
        self.shapes = {name: tuple(tensor.shape) for name, tensor in lm.state_dict().items()}
        self._vocabulary = int(getattr(lm.config.get_text_config(), "vocab_size", 0))
        self.spellings = _spell_shared(lm)
        self.stored = {piece.name for name in self.shapes for piece in self._try_pieces(name)}

    def pieces(self, name: str) -> tuple[Piece, ...]:
        """What makes up a parameter. Raises ``Refused`` where it is stored in a form that can't be read in pieces."""
        for converter, reverse in self.converters:
            first, pattern = reverse.rename_source_key(name)
            if pattern is not None:
                sources = [first.replace(reverse.target_patterns[0], other, 1) for other in reverse.target_patterns]
                return tuple(self._convert(converter, name, sources, reverse.source_patterns.index(pattern)))
        whole = tuple(slice(0, size) for size in self.shapes[name])
        return (Piece(name, self.shapes[name], whole, whole),)

    def is_plain(self, name: str) -> bool:
        """Whether a checkpoint holds a parameter as it is."""
        return self._try_pieces(name)[:1] == [Piece(name, self.shapes[name], *[_whole(self.shapes[name])] * 2)]

    def _try_pieces(self, name: str) -> list[Piece]:
        try:
            return list(self.pieces(name))
        except Refused:
            return []

    def rename(self, name: str) -> str:
        """Renames what transformers has renamed since, names of a bare model, which lack its prefix, and those of
        tensors that the model has under several names.
        """
        if name not in self.stored:
            for rule in self.renamings:
                name, _ = rule.rename_source_key(name)
            longer, shorter = f"{self.prefix}.{name}", name.removeprefix(f"{self.prefix}.")
            name = next((each for each in (name, longer, shorter) if each in self.stored), name)
        return self.spellings.get(name, name)

    def spell_beginnings(self, lm: PreTrainedModel) -> Prefixes:
        """How transformers spells the beginnings of names when it saves: a config.json may name layers so, too."""
        alike = {re.sub(r"\.\d+\.", ".*.", name): name for name in lm.state_dict() if self.is_plain(name)}
        pairs: dict[tuple[str, str], None] = {}
        for pattern, name in alike.items():
            (saved,) = revert_weight_conversion(lm, {name: torch.empty(self.shapes[name], device="meta")})
            theirs, own = re.sub(r"\.\d+\.", ".*.", saved).split("."), pattern.split(".")
            while len(theirs) > 1 and len(own) > 1 and theirs[-1] == own[-1]:
                theirs, own = theirs[:-1], own[:-1]
            if theirs != own:
                pairs[".".join(theirs), ".".join(own)] = None
        return tuple(pairs)

    def patterns_within(self, places: Sequence[str]) -> list[str]:
        """Patterns of the names under which checkpoints hold the tensors of modules, or parameters."""
        below = tuple(f"{place}." for place in places)
        within = [name for name in self.shapes if f"{name}.".startswith(below)]
        stored = [piece.name for name in within for piece in self._try_pieces(name)]
        elsewhere = [name for name in stored if not f"{name}.".startswith(below)]
        return [*(rf"^{re.escape(place)}(\.|$)" for place in places), *_match_numbered(elsewhere)]

    def _convert(self, converter: WeightConverter, name: str, sources: list[str], number: int) -> Iterator[Piece]:
        """The pieces of a parameter by the rule that makes it of others, or is one of several that a rule makes."""
        operations: list[Any] = converter.operations
        kinds, shape = [type(operation) for operation in operations], self.shapes[name]
        steps = [(kind, getattr(operation, "dim", None)) for kind, operation in zip(kinds, operations, strict=True)]
        if steps in ([(MergeModulelist, 0)], [(MergeModulelist, 0), (Concatenate, 1)]):
            yield from _stack(sources, shape)
        elif kinds == [Concatenate] and operations[0].num_shards_attribute is None:
            yield from _join(sources, shape, operations[0].dim)
        elif kinds == [Interleave] and operations[0].dim > 0 and not operations[0].inverse:
            yield from _part(sources[0], shape, operations[0].dim)
        elif kinds in ([Chunk], [Split]) and len(sources) == 1:
            yield self._cut(converter, name, sources[0], number, operations[0].dim)
        elif kinds == [Transpose] and len(shape) == 2 and not operations[0].check_dims:
            across = (*shape[::-1],)
            yield Piece(sources[0], across, _whole(across), _whole(across), transposed=True)
        elif [kind.__name__ for kind in kinds] == [_BY_MEDIUM]:
            yield from _stack(sources, shape, first=number * shape[0])
        elif [kind.__name__ for kind in kinds] == [_UNPADDED]:
            yield Piece(sources[0], (self._vocabulary, *shape[1:]), _whole(shape), _whole(shape))
        else:
            said = ", ".join(kind.__name__ for kind in kinds)
            raise Refused(f"checkpoints hold {name} in a form that is not read in pieces ({said})")

    def _cut(self, converter: WeightConverter, name: str, source: str, number: int, axis: int) -> Piece:
        """The part of a fused tensor that is the parameter ``name``."""
        targets = converter.target_patterns
        names = [name.replace(targets[number], target, 1) for target in targets]
        if any(other not in self.shapes for other in names):
            raise Refused(f"checkpoints hold {name} fused with others that are not known")
        sizes = [self.shapes[other][axis] for other in names]
        start, shape, whole = sum(sizes[:number]), list(self.shapes[name]), _whole(self.shapes[name])
        shape[axis] = sum(sizes)
        region = (*whole[:axis], slice(start, start + sizes[number]), *whole[axis + 1 :])
        return Piece(source, tuple(shape), region, whole)


def _whole(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in shape)


def _stack(sources: Sequence[str], shape: tuple[int, ...], first: int = 0) -> Iterator[Piece]:
    """Of ``sources`` with a star each, for every number in its place: side by side, then one number on the other.
    Numbers begin at ``first``.
    """
    count, rows, *rest = shape
    size = rows // len(sources)
    for number in range(count):
        for place, source in enumerate(sources):
            part = (size, *rest)
            target = (slice(place * size, (place + 1) * size), *_whole(rest))
            yield Piece(source.replace("*", str(first + number)), part, _whole(part), target, number)


def _join(sources: Sequence[str], shape: tuple[int, ...], axis: int) -> Iterator[Piece]:
    """Of ``sources`` of one size, side by side."""
    size, whole = shape[axis] // len(sources), _whole(shape)
    for place, source in enumerate(sources):
        part = (*shape[:axis], size, *shape[axis + 1 :])
        target = (*whole[:axis], slice(place * size, (place + 1) * size), *whole[axis + 1 :])
        yield Piece(source, part, _whole(part), target)


def _part(source: str, shape: tuple[int, ...], axis: int) -> Iterator[Piece]:
    """Of a tensor that holds two in turns along ``axis``: one behind the other."""
    half, whole = shape[axis] // 2, _whole(shape)
    for number in range(2):
        every, side = slice(number, shape[axis], 2), slice(number * half, (number + 1) * half)
        regions = ((*whole[:axis], part, *whole[axis + 1 :]) for part in (every, side))
        yield Piece(source, shape, *regions)


def _match_numbered(names: Sequence[str]) -> Iterator[str]:
    """Patterns of names, one for all that differ in numbers alone."""
    numbers: dict[tuple[str, ...], list[set[str]]] = {}
    for name in names:
        parts = re.split(r"(\d+)", name)
        seen = numbers.setdefault(tuple(parts[::2]), [set() for _ in parts[1::2]])
        for each, number in zip(seen, parts[1::2], strict=True):
            each.add(number)
    for texts, seen in numbers.items():
        choices = [*(f"({'|'.join(sorted(each))})" for each in seen), "$"]
        yield "^" + "".join(re.escape(text) + choice for text, choice in zip(texts, choices, strict=True))


def _spell_shared(lm: nn.Module) -> dict[str, str]:
    """The other names of parameters that several modules hold -> the one they are declared under."""
    names: dict[int, str] = {}
    return {
        name: names[id(parameter)]
        for name, parameter in lm.named_parameters(remove_duplicate=False)
        if names.setdefault(id(parameter), name) != name
    }
