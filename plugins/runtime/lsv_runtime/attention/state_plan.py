"""Where a step reads recurrent states in the pages of the KV cache, and where it leaves them.

A block of a state group is one state, that behind the block's last token which is computed. A row goes on from the
block of the token before its first one. It writes to the block of its last token, and at each border before that whose
block is in its table: the checkpoints that the scheduler wants. Where its last tokens are drafts, nobody knows yet
which of them stand, so it leaves a state behind each of them and before the first: see ``BatchLayout.draft_pages``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lsv_runtime.attention.tables import Int32s, Int64s, TableRows, blocks_at

if TYPE_CHECKING:
    import torch

    from lsv_runtime.attention import AttentionBackend, BatchLayout, Place
    from lsv_runtime.attention.states import StateLayer


def view_states(
    layers: Sequence[StateLayer], backend: AttentionBackend, cache: Any
) -> Mapping[Place, Mapping[str, torch.Tensor]]:
    """The parts of all layers' states in a backend's cache, [pages, *shape] each by name."""
    if not layers:
        return {}
    pages = backend.state_pages(cache)
    return {(layer.group, layer.place): layer.views(pages[layer.group, layer.place]) for layer in layers}


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Pieces of rows that have equally many tokens, and are computed together."""

    tokens: torch.Tensor
    """int64 [pieces, length]: which tokens of the step they are."""

    sources: torch.Tensor
    """int64 [pieces]: the pages of the states that they go on from."""

    fresh: torch.Tensor | None
    """bool [pieces]: which of them begin their request, and so without a state; None where none does."""

    targets: torch.Tensor
    """int64 [pieces]: the pages that their last states go to."""


@dataclass(frozen=True, slots=True, eq=False)
class StatePlan:
    """What the layers of a state group share in a step."""

    runs: tuple[Run, ...]
    """In their order: a piece may go on from where one in an earlier run ends."""

    states: Mapping[Place, Mapping[str, torch.Tensor]]
    """The parts of all layers' states by name, [pages, *shape] each."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens ``begin … stop-1`` of the step, of one row; ``source`` is None at the row's first token."""

    begin: int
    stop: int
    source: int | None
    target: int


def plan_states(
    batch: BatchLayout,
    table: Int32s | TableRows,
    block_size: int,
    device: torch.device,
    states: Mapping[Place, Mapping[str, torch.Tensor]],
    drafts: Mapping[int, Sequence[int]] = {},
) -> StatePlan:
    """The plan of a flat batch over the block table [rows, blocks] of a state group; ``drafts`` are the group's
    ``BatchLayout.draft_pages``.
    """
    query = batch.query.astype(np.int64)
    start = batch.context.astype(np.int64) - query
    if (query == 1).all():
        return StatePlan((_single_run(start, table, block_size, device),), states)
    found: dict[tuple[int, int], list[_Piece]] = {}
    begin = 0
    for row, count in enumerate(query.tolist()):
        pieces = _cut(row, begin, int(start[row]), count, table, block_size, drafts.get(row, ()))
        for depth, piece in enumerate(pieces):
            found.setdefault((depth, piece.stop - piece.begin), []).append(piece)
        begin += count
    return StatePlan(tuple(_run(found[key], device) for key in sorted(found)), states)


def _single_run(start: Int64s, table: Int32s | TableRows, block_size: int, device: torch.device) -> Run:
    """The run of a step in which every row has one token."""
    rows = np.arange(len(start))
    sources = blocks_at(table, rows, np.maximum(start - 1, 0) // block_size)
    targets = blocks_at(table, rows, start // block_size)
    return _make_run(rows[:, None], sources, start == 0, targets, device)


def _cut(
    row: int, begin: int, start: int, count: int, table: Int32s | TableRows, block_size: int, drafts: Sequence[int]
) -> Sequence[_Piece]:
    """The pieces of a row whose ``count`` tokens from position ``start`` on begin at ``begin`` in the step; the states
    before each of its last tokens go to the pages ``drafts``, but for those at a border.
    """
    if not count:
        return ()
    end = start + count
    columns = np.arange(max(0, start - 1) // block_size, (end - 1) // block_size + 1)
    pages = blocks_at(table, np.full(len(columns), row), columns).tolist()
    stops = {min((column + 1) * block_size, end): page for column, page in zip(columns.tolist(), pages, strict=True)}
    targets = dict(enumerate(drafts, end - len(drafts)))
    targets |= {stop: page for stop, page in stops.items() if stop > start and (page or stop == end)}
    pieces: list[_Piece] = []
    source, at = pages[0] if start else None, start
    for stop in sorted(targets):
        pieces.append(_Piece(begin + at - start, begin + stop - start, source, targets[stop]))
        source, at = targets[stop], stop
    return pieces


def _run(pieces: Sequence[_Piece], device: torch.device) -> Run:
    tokens = np.array([piece.begin for piece in pieces])[:, None] + np.arange(pieces[0].stop - pieces[0].begin)
    sources = np.array([piece.source or 0 for piece in pieces])
    fresh = np.array([piece.source is None for piece in pieces])
    return _make_run(tokens, sources, fresh, np.array([piece.target for piece in pieces]), device)


def _make_run(
    tokens: Int64s,
    sources: npt.NDArray[np.integer],
    fresh: npt.NDArray[np.bool_],
    targets: npt.NDArray[np.integer],
    device: torch.device,
) -> Run:
    import torch

    def send(array: npt.NDArray[np.integer]) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(device)

    marks = torch.from_numpy(fresh).to(device) if fresh.any() else None
    return Run(send(tokens), send(sources), marks, send(targets))
