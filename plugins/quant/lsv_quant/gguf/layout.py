"""Where the tensors of a model are in its file, by the names lsv's models declare. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from lsv_base.errors import CheckpointError
from lsv_quant.gguf.architecture import Architecture, Name
from lsv_quant.gguf.families import FAMILIES
from lsv_quant.gguf.file import GgufFile
from lsv_quant.gguf.types import TYPES, Form, joint_form

TABLE = "token_embd.weight"
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
_OF_ROPES = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)
_EXPERTS = {"ffn_gate_exps": (1,), "ffn_up_exps": (2,), "ffn_down_exps": (3,), "ffn_gate_up_exps": (1, 2)}
_BLOCK = re.compile(r"blk\.(\d+)\.([\w.]+)")
_KEY_HALF, _VALUE_HALF, _BOTH_HALVES = "attn_k_b.weight", "attn_v_b.weight", "self_attn.kv_b_proj.weight"
_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
_LINEAR = re.compile(
    r"blk\.\d+\.(attn_(q|k|v|qkv|output|q_a|q_b|kv_a_mqa|kv_b)|ffn_(gate|up|down|gate_up)(_exps|_shexp)?)\.weight"
)


class Rows(NamedTuple):
    """``count`` rows from the row ``first`` on, over all axes but the last; of a vector, numbers.

    ``pairs`` > 0 is the size of heads, whose rows are stored interleaved. Of a ``turned`` matrix with ``turned`` rows,
    which begins at ``first``, they are columns.
    """

    tensor: str
    first: int
    count: int
    pairs: int = 0
    turned: int = 0


class Place(NamedTuple):
    """Where a model's tensor is: ``rows``, one after another, changed as ``change`` says."""

    rows: tuple[Rows, ...]
    shape: tuple[int, ...]
    change: str = ""


class Heads(NamedTuple):
    """How many heads queries have, and keys and values; 0 where a file does not say."""

    queries: int
    kv: int


def architecture_of(file: GgufFile) -> Architecture:
    """What a file holds. Raises ``CheckpointError`` for an unknown ``general.architecture``."""
    name = file.metadata.get("general.architecture")
    for one in FAMILIES.get(name, ()) if isinstance(name, str) else ():
        if not one.when or file.metadata.get(f"{name}.{one.when}") or _has(file, one.when):
            return one
    if file.metadata.get("general.type") == "mmproj" or name == "clip":
        raise CheckpointError(
            "the GGUF file holds the tower of a model that takes media (mmproj): name the file of its language model, "
            "which answers texts",
            param="model",
        )
    raise CheckpointError(
        f"the GGUF file holds a model of architecture {name!r}; those that can be read are {', '.join(FAMILIES)}",
        param="model",
    )


def _has(file: GgufFile, name: str) -> bool:
    return any(tensor.endswith(f".{name}") for tensor in file.tensors)


def heads_of(metadata: Mapping[str, Any]) -> Heads:
    prefix = f"{metadata.get('general.architecture')}.attention"
    queries = metadata.get(f"{prefix}.head_count")
    kv = metadata.get(f"{prefix}.head_count_kv", queries)
    return Heads(*(count if type(count) is int and count > 0 else 0 for count in (queries, kv)))


def layers_of(metadata: Mapping[str, Any]) -> int | None:
    """How many layers a model has, without those that predict further tokens; None where a file does not say."""
    name = metadata.get("general.architecture")
    blocks, further = metadata.get(f"{name}.block_count"), metadata.get(f"{name}.nextn_predict_layers", 0)
    return blocks - further if type(blocks) is int and type(further) is int else None


def places(file: GgufFile) -> dict[str, Place]:
    """Places by name. Raises ``CheckpointError`` for unknown tensors, and for those whose rows are not what they must
    be.
    """
    architecture = architecture_of(file)
    found: dict[str, Place] = {}
    for name, place in _Layout(file, architecture).places():
        own = found.get(name)
        if own is not None:
            if own.shape[1:] != place.shape[1:]:
                raise CheckpointError(f"the GGUF file's {place.rows[0].tensor} does not fit {own.rows[0].tensor}")
            place = Place((*own.rows, *place.rows), (own.shape[0] + place.shape[0], *own.shape[1:]), own.change)
        found[name] = place
    return found


class _Layout:
    def __init__(self, file: GgufFile, architecture: Architecture) -> None:
        self.file, self.architecture = file, architecture
        self.heads, self.layers = heads_of(file.metadata), layers_of(file.metadata)

    def places(self) -> Iterator[tuple[str, Place]]:
        order = {part: number for number, part in enumerate(self.architecture.parts)}
        tensors = sorted(self.file.tensors, key=lambda name: order.get(name.split(".")[-2] if "." in name else "", 0))
        for tensor in tensors:
            if tensor not in _OF_ROPES:
                yield from self._places_of(tensor)

    def _places_of(self, tensor: str) -> Iterator[tuple[str, Place]]:
        match = _BLOCK.fullmatch(tensor)
        if match is None:
            own = self.architecture.end(tensor)
            if own is None:
                raise self._homeless(tensor)
            yield own, self._whole(tensor, own)
            return
        if self.layers is not None and int(match[1]) >= self.layers:
            return  # it predicts further tokens
        place = f"{self.architecture.layers}.{match[1]}"
        stem, _, end = match[2].rpartition(".")
        axes = len(self.file.tensors[tensor].shape)
        if self.architecture.latent and match[2] in (_KEY_HALF, _VALUE_HALF):
            if match[2] == _KEY_HALF:
                yield f"{place}.{_BOTH_HALVES}", self._halves(tensor)
        elif stem in _EXPERTS and axes == (3 if end == "weight" else 2):
            yield from self._experts(tensor, place, _EXPERTS[stem], end)
        else:
            name = self.architecture.part(match[2])
            if name is None:
                raise self._homeless(tensor)
            yield from self._part(tensor, place, name, match[2])

    def _part(self, tensor: str, place: str, name: Name, part: str) -> Iterator[tuple[str, Place]]:
        if isinstance(name, tuple):
            whole = self._whole(tensor, part)
            sizes = self._shares(tensor, whole.shape[0])
            first = 0
            for own, size in zip(name, sizes, strict=True):
                yield f"{place}.{own}", Place((Rows(tensor, first, size),), (size, *whole.shape[1:]))
                first += size
        elif "*" in name:
            whole = self._whole(tensor, part)
            for row in range(whole.shape[0]):
                yield f"{place}.{name.replace('*', str(row))}", Place((Rows(tensor, row, 1),), whole.shape[1:])
        else:
            yield f"{place}.{name}", self._whole(tensor, part)

    def _whole(self, tensor: str, part: str) -> Place:
        shape = self.file.tensors[tensor].shape
        if len(shape) > 2:
            raise CheckpointError(
                f"the GGUF file has a tensor {tensor} with {len(shape)} axes, not a vector or a matrix"
            )
        if len(shape) == 1 and TYPES[self.file.tensors[tensor].type].form is not None:
            raise CheckpointError(f"the GGUF file's {tensor} is a vector in blocks, which vectors never are")
        stem, pairs = part.rpartition(".")[0], 0
        if self.architecture.interleaved and stem in ("attn_q", "attn_k"):
            pairs = self._head_size(tensor, shape[0], self.heads.queries if stem == "attn_q" else self.heads.kv)
        rows: tuple[Rows, ...] = (Rows(tensor, 0, shape[0], pairs),)
        if self.architecture.by_head and stem == "attn_qkv":
            rows = self._by_head(tensor, shape[0])
        if part in self.architecture.single_rows:
            return Place(rows if len(shape) == 1 else (Rows(tensor, 0, 1),), (1, shape[-1]))
        less_one = self.architecture.offset_norms and tensor.endswith("_norm.weight")
        return Place(rows, shape, "less one" if less_one else "")

    def _head_size(self, tensor: str, rows: int, heads: int) -> int:
        if heads < 1 or rows % (2 * heads):
            raise CheckpointError(f"the GGUF file's {tensor} has {rows} rows, which are not pairs in {heads} heads")
        return rows // heads

    def _shares(self, tensor: str, rows: int) -> tuple[int, int, int]:
        """The rows of q, k and v in one tensor."""
        heads = self.heads.queries + 2 * self.heads.kv
        if not all(self.heads) or rows % heads:
            raise CheckpointError(
                f"the GGUF file's {tensor} has {rows} rows, which are not those of {self.heads.queries} heads of q and "
                f"{self.heads.kv} each of k and v"
            )
        size = rows // heads
        return self.heads.queries * size, self.heads.kv * size, self.heads.kv * size

    def _by_head(self, tensor: str, rows: int) -> tuple[Rows, ...]:
        queries, keys, _ = self._shares(tensor, rows)
        count = self.heads.kv
        own, size = queries // count, keys // count
        return tuple(
            Rows(tensor, first, size_)
            for head in range(count)
            for first, size_ in (
                (head * own, own), (queries + head * size, size), (queries + keys + head * size, size),
            )
        )  # fmt: skip

    def _halves(self, tensor: str) -> Place:
        """Latent attention's second projection: by head the rows of keys, stored turned, then those of values."""
        other = tensor.replace(_KEY_HALF, _VALUE_HALF)
        keys, values = (self.file.tensors[name].shape if name in self.file.tensors else () for name in (tensor, other))
        if len(keys) != 3 or len(values) != 3 or keys[:2] != (values[0], values[2]):
            raise CheckpointError(f"the GGUF file's {tensor} and {other} are not the halves of one matrix by heads")
        heads, rank, plain = keys
        rows = [
            half
            for head in range(heads)
            for half in (
                Rows(tensor, head * rank, plain, turned=rank), Rows(other, head * values[1], values[1]),
            )
        ]  # fmt: skip
        return Place(tuple(rows), (heads * (plain + values[1]), rank))

    def _experts(self, tensor: str, place: str, parts: tuple[int, ...], end: str) -> Iterator[tuple[str, Place]]:
        experts, rows, *inner = self.file.tensors[tensor].shape
        where, count = self.architecture.experts, rows // len(parts)
        for expert in range(experts):
            if end == "bias":
                yield f"{place}.{where[0]}.{expert}.{where[parts[0]]}.{end}", Place((Rows(tensor, expert, 1),), (rows,))
                continue
            for number, part in enumerate(parts):
                first = expert * rows + number * count
                name = f"{place}.{where[0]}.{expert}.{where[part]}.{end}"
                yield name, Place((Rows(tensor, first, count),), (count, *inner))

    def _homeless(self, tensor: str) -> CheckpointError:
        return CheckpointError(
            f"the GGUF file has a tensor {tensor}, which {self.architecture.name} has no place for", param="model"
        )


def forms(file: GgufFile, where: Mapping[str, Place]) -> dict[str, Form]:
    """By name, the forms of layers and embeddings that are held as codes; layers that a model may fuse share one."""
    own = {
        name.removesuffix(".weight"): joint_form(_forms_of(file, place))
        for name, place in where.items()
        if _is_linear(place)
    }
    found = {}
    for name in own:
        place, _, part = name.rpartition(".")
        fellows = next((group for group in _FUSED if part in group), (part,))
        names = (f"{place}.{fellow}" if place else fellow for fellow in fellows)
        form = joint_form(own[fellow] for fellow in names if fellow in own)
        if form is not None:
            found[name] = form
    return found


def _forms_of(file: GgufFile, place: Place) -> Iterable[Form | None]:
    return (TYPES[file.tensors[rows.tensor].type].form for rows in place.rows)


def _is_linear(place: Place) -> bool:
    """Embeddings are tables of rows, which are held like the head's. Routers are never quantised, and what is turned
    can't be.
    """
    tensor = place.rows[0].tensor
    if tensor in ("output.weight", TABLE):
        return True
    return _LINEAR.fullmatch(tensor) is not None and not any(rows.turned for rows in place.rows)
