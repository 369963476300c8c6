"""Log probabilities as users see them: of the chosen token and of the likeliest ones, with ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.scheduler.plan import Logprobs

_Column = tuple[tuple[int, ...], tuple[float, ...], tuple[int, ...]]


def describe(logprobs: Tensor, chosen: Tensor, wanted: Sequence[int]) -> list[Logprobs]:
    """One position a row: the chosen token, then the row's ``wanted`` likeliest ones.

    The chosen one stands among these again if it belongs there: a position has ``wanted + 1`` entries.

    ``logprobs`` float32 [rows, vocabulary], ``chosen`` int64 [rows]. A token's rank is 1 plus the number of
    strictly likelier ones; among equals the lower id stands first, so the batch makes no difference.
    """
    own = logprobs.gather(-1, chosen.unsqueeze(-1))
    ranks = (logprobs > own).sum(dim=-1) + 1
    first = zip(chosen.tolist(), own.squeeze(-1).tolist(), ranks.tolist(), strict=True)
    best = _likeliest(logprobs, wanted)
    return [
        Logprobs(((token, *ids),), ((value, *values),), ((rank, *places),))
        for (token, value, rank), (ids, values, places) in zip(first, best, strict=True)
    ]


def join(positions: Iterable[Logprobs]) -> Logprobs:
    """Several runs of positions as one."""
    parts = list(positions)
    return Logprobs(
        tuple(row for part in parts for row in part.ids),
        tuple(row for part in parts for row in part.values),
        tuple(row for part in parts for row in part.ranks),
    )


def _likeliest(logprobs: Tensor, wanted: Sequence[int]) -> list[_Column]:
    """The best ``wanted[row]`` tokens of each row: ids, values, ranks."""
    most = min(max(wanted), logprobs.shape[-1])
    if most == 0:
        return [((), (), ())] * len(wanted)
    threshold = logprobs.topk(most, dim=-1).values[:, -1:]
    rows, ids = (logprobs >= threshold).nonzero(as_tuple=True)  # with ties at the border, more than ``most``
    values = logprobs[rows, ids]
    borders = torch.searchsorted(rows, torch.arange(1, len(wanted), device=rows.device)).tolist()
    return [
        _best_of_row(row_ids, row_values, count)
        for row_ids, row_values, count in zip(
            np.split(ids.cpu().numpy(), borders), np.split(values.cpu().numpy(), borders), wanted, strict=True
        )
    ]


def _best_of_row(ids: npt.NDArray[np.int64], values: npt.NDArray[np.float32], count: int) -> _Column:
    """``ids`` ascending -> the best ``count`` of them; a stable sort keeps equals in the order of ids."""
    order = np.argsort(-values, kind="stable")[:count]
    best = values[order]
    ranks = np.searchsorted(-best, -best, side="left") + 1
    return tuple(ids[order].tolist()), tuple(best.tolist()), tuple(ranks.tolist())
