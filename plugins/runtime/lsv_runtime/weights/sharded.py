"""vLLM's ``sharded_state``: weights of each tensor-parallel rank in files of its own, fused and cut as it holds them.

``model-rank-{rank}-part-{part}.safetensors`` (vllm/model_executor/model_loader/sharded_state_loader.py). ``qkv_proj``
and ``gate_up_proj`` are several projections in one; columns are cut along the outputs, rows along the inputs, the
vocabulary is padded to a multiple of 64 first, and KV heads are repeated where there are fewer of them than ranks. Of a
tied head and embedding the head alone is stored.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lsv_base.errors import CheckpointError, ConfigError
from lsv_runtime.weights.checkpoint import SafetensorsSource, TensorInfo, read_region
from lsv_runtime.weights.regions import Region, span_of

if TYPE_CHECKING:
    from lsv_runtime.weights.place import TensorSlot

PATTERN = "model-rank-{rank}-part-{part}.safetensors"
FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""What vLLM calls a fused layer, and the names of its parts in other checkpoints."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_PADDING = 64
_MOST_RANKS = 4096
_GAPS = re.compile(r"\{(rank|part)\}")


def padded_vocabulary(size: int) -> int:
    """Rows of an embedding of ``size`` tokens in all ranks' files together."""
    return -(-size // _PADDING) * _PADDING


def check_pattern(pattern: object) -> str:
    """A pattern of file names, checked. Raises ``ConfigError``."""
    if not isinstance(pattern, str) or set(_GAPS.findall(pattern)) != {"rank", "part"}:
        raise ConfigError(
            f"the pattern of sharded files must be text with {{rank}} and {{part}}, such as {PATTERN}, got {pattern!r}",
            param="model_loader_extra_config",
        )
    return pattern


def file_name(pattern: str, rank: int, part: int | str) -> str:
    """A pattern with its gaps filled."""
    given = {"rank": str(rank), "part": str(part)}
    return _GAPS.sub(lambda gap: given[gap[1]], pattern)


def is_sharded(folder: Path) -> bool:
    """Whether a folder holds such files under their usual names."""
    return any(folder.glob(file_name(PATTERN, 0, "*")))


@dataclass(frozen=True, slots=True)
class _Segment:
    """``count`` rows, or columns, of a stored tensor from ``first`` on."""

    rank: int
    stored: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class _Joined:
    """A tensor of the whole model, put together along ``axis`` from what ranks hold."""

    info: TensorInfo
    axis: int
    segments: tuple[_Segment, ...]


class ShardedSource:
    """The files of all ranks as one checkpoint under its usual names, for as many ranks as one likes.

    ``slots`` say which tensors the model has, and how large they are. Raises ``CheckpointError`` for a folder without
    such files, and for files that do not add up to these tensors.
    """

    def __init__(self, folder: Path, slots: Iterable[TensorSlot], pattern: str = PATTERN) -> None:
        self._open = ExitStack()
        try:
            self._ranks = [SafetensorsSource(folder, files) for files in _find_files(folder, check_pattern(pattern))]
            for rank in self._ranks:
                self._open.callback(rank.close)
            shapes = {piece.name: piece.shape for slot in slots for piece in slot.pieces}
            self._tensors = dict(self._join_all(shapes))
        except BaseException:
            self.close()
            raise
        self._infos = {name: joined.info for name, joined in self._tensors.items()}

    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def read(self, name: str, first: int, last: int) -> torch.Tensor:
        return self.read_region(name, (slice(first, last),))

    def read_region(self, name: str, region: Region) -> torch.Tensor:
        joined = self._tensors[name]
        shape, axis = joined.info.shape or (1,), joined.axis
        before = [span_of(region, number, shape[number]) for number in range(axis)]
        wanted, found, place = span_of(region, axis, shape[axis]), [], 0
        for one in joined.segments:
            start, stop = max(wanted.start, place), min(wanted.stop, place + one.count)
            if start < stop:
                shift = one.first - place
                inside = (*before, slice(start + shift, stop + shift), *region[axis + 1 :])
                found.append(read_region(self._ranks[one.rank], one.stored, inside))
            place += one.count
        return found[0] if len(found) == 1 else torch.cat(found, dim=axis)

    def close(self) -> None:
        self._open.close()

    def _join_all(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterable[tuple[str, _Joined]]:
        first, *others = (rank.tensors() for rank in self._ranks)
        for number, other in enumerate(others, 1):
            if other.keys() != first.keys():
                differing = ", ".join(sorted(other.keys() ^ first.keys())[:8])
                raise CheckpointError(f"the files of ranks 0 and {number} do not hold the same tensors: {differing}")
        for stored, info in first.items():
            names = _names(stored, shapes, first)
            if all(name in shapes for name in names):
                yield from self._join(stored, info, {name: shapes[name] for name in names})
            else:
                yield stored, _Joined(info, 0, (_Segment(0, stored, 0, _rows(info.shape)),))

    def _join(
        self, stored: str, info: TensorInfo, wanted: Mapping[str, tuple[int, ...]]
    ) -> Iterable[tuple[str, _Joined]]:
        """The tensors behind a stored one. Raises ``CheckpointError`` where its ranks do not add up to them."""
        ranks, held = len(self._ranks), info.shape
        if any(rank.tensors()[stored] != info for rank in self._ranks):
            raise CheckpointError(f"{stored} is not of one shape and type in the files of all ranks")
        (name, whole), *others = wanted.items()
        if not others and held == whole:
            yield name, _Joined(info, 0, (_Segment(0, stored, 0, _rows(held)),))
            return
        if not others and len(held) == 2 and (held[0], held[1] * ranks) == whole:
            segments = tuple(_Segment(rank, stored, 0, held[1]) for rank in range(ranks))
            yield name, _Joined(TensorInfo(whole, info.dtype), 1, segments)
            return
        shares = _shares([_rows(shape) for shape in wanted.values()], _rows(held), ranks)
        if shares is None or any(shape[1:] != held[1:] for shape in wanted.values()):
            shapes = " and ".join(f"{name} {list(shape)}" for name, shape in wanted.items())
            raise CheckpointError(
                f"{stored} {list(held)} of {ranks} ranks does not add up to {shapes}: are files of ranks missing?"
            )
        first = 0
        for (name, shape), share in zip(wanted.items(), shares, strict=True):
            copies = share * ranks // shape[0] if others else 1
            yield name, _Joined(TensorInfo(shape, info.dtype), 0, _cut(stored, shape[0], first, share, ranks, copies))
            first += share


def _rows(shape: Sequence[int]) -> int:
    return shape[0] if shape else 1


def _find_files(folder: Path, pattern: str) -> list[list[Path]]:
    """The files of each rank."""
    found: list[list[Path]] = []
    for rank in range(_MOST_RANKS):
        files = sorted(folder.glob(file_name(pattern, rank, "*")))
        if not files:
            break
        found.append(files)
    if not found:
        raise CheckpointError(
            f"{folder} has no {file_name(pattern, 0, 0)}: load_format sharded_state reads what lsv save-sharded-state "
            'or vLLM has saved; other names are given by --model-loader-extra-config \'{"pattern": "…"}\''
        )
    return found


def _names(stored: str, shapes: Mapping[str, tuple[int, ...]], others: Mapping[str, TensorInfo]) -> list[str]:
    """The names of what a stored tensor holds."""
    if stored == HEAD and HEAD not in shapes and EMBEDDING not in others:
        return [EMBEDDING]
    place, _, suffix = stored.rpartition(".")
    above, _, layer = place.rpartition(".")
    return [f"{above}.{part}.{suffix}" for part in FUSED[layer]] if layer in FUSED and above else [stored]


def _shares(totals: Sequence[int], rows: int, ranks: int) -> list[int] | None:
    """Of ``rows`` of a rank, how many belong to each tensor of ``totals`` rows; None where that does not add up."""
    if len(totals) == 1 and rows * ranks in (totals[0], padded_vocabulary(totals[0])):
        return [rows]
    first, *others = totals
    share = first // ranks
    if not others or first % ranks or len(set(others)) > 1 or (rows - share) % len(others):
        return None
    other = (rows - share) // len(others)
    copies, left = divmod(other * ranks, others[0])
    return [share, *itertools.repeat(other, len(others))] if copies >= 1 and not left else None


def _cut(stored: str, total: int, first: int, share: int, ranks: int, copies: int) -> tuple[_Segment, ...]:
    """Where the rows of a tensor are: in each rank, or in one of ``copies`` that hold the same, ``share`` of them from
    ``first`` on, of which the last may be padding.
    """
    places = range(0, ranks, copies)
    counts = (min(share, total - share * number) for number in range(len(places)))
    return tuple(_Segment(rank, stored, first, count) for rank, count in zip(places, counts, strict=True) if count > 0)
