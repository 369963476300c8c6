"""The two ops that end a step: logits to tokens, and log probabilities of tokens.

Both are modules that platforms may offer kernels for. What they do is told by records, ``CHOICE`` and ``EDIT``, which
kernels read as they are; ``lsv_runtime.worker.sampling`` makes these of requests' parameters. The references chain the
functions of ``lsv_runtime.nn.sample_ops``, with the random numbers of ``lsv_runtime.nn.philox``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lsv.offers import OpSpec
from lsv_runtime.nn import sample_ops
from lsv_runtime.nn.philox import uniform
from lsv_runtime.ops import Bindable, dtype_name

Int64s = npt.NDArray[np.int64]

Choices = npt.NDArray[np.void]
"""How each row's token is chosen: one ``CHOICE`` a row."""

Edits = npt.NDArray[np.void]
"""What requests change about their logits: ``EDIT`` records, those of one row after those of the other."""

CHOICE = np.dtype(
    [
        ("rate", np.float32),  # ``sample_ops.rate`` of the temperature; 0 takes the best token, by the lowest id
        ("only", np.int32),  # 1 forbids all tokens but those that edits allow
        ("edits", np.int64),  # how many edits are the row's
        ("top_k", np.int64),  # 0 keeps all
        ("top_p", np.int64),  # 32-bit fraction; ``WHOLE`` keeps all
        ("min_p", np.int64),  # 32-bit fraction; 0 keeps all
        ("seed", np.uint64),  # of the draw, with the position: see ``lsv_runtime.nn.philox``
        ("position", np.uint64),
    ]
)
EDIT = np.dtype([("token", np.int32), ("kind", np.int32), ("first", np.float32), ("second", np.float32)])
WHOLE = 1 << 32

NOT_FINITE, NO_TOKEN_LEFT = -1, -2
"""In the place of a token: the row holds NaN or an infinity; its edits forbid every token."""

_BELOW_SIGN = (1 << 31) - 1
_ROWS_AT_ONCE = 4
"""Rows drawn together: the scratch memory is tens of bytes per row and vocabulary entry, and fresh pages cost time."""


class Kind(enum.IntEnum):
    """What an edit does. A row's edits stand in this order, and of one kind it has at most one a token (but forbidding
    a token twice is forbidding it).
    """

    ALLOW = 0
    FORBID = 1
    ADD = 2  # ``first``
    PENALIZE = 3  # ``first`` divides positive and multiplies other logits, then ``second`` is subtracted


class Choose(Bindable):
    """Logits to tokens: finite check, edits, top-k, temperature, top-p, min-p, draw."""

    op: ClassVar[str] = "sample"
    row_invariant: ClassVar[bool] = True

    def __init__(self, vocab_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.vocab_size, self.dtype = vocab_size, dtype

    def spec(self) -> OpSpec:
        return OpSpec(self.op, dtype_name(self.dtype), shape={"vocabulary": self.vocab_size})

    def reference(self, logits: Tensor, choices: Choices, edits: Edits) -> Tensor:
        """logits [rows, vocabulary], any float dtype -> int64 [rows] on their device.

        A negative token says why there is none. Edits name tokens of the vocabulary only.
        """
        logits = logits.to(torch.float32, copy=True)
        tokens = torch.zeros(len(choices), dtype=torch.int64, device=logits.device)
        _fail(logits, tokens, sample_ops.finite(logits), NOT_FINITE)
        if len(edits) or choices["only"].any():
            edit_logits(logits, choices, edits)
            _fail(logits, tokens, logits.amax(dim=-1) > float("-inf"), NO_TOKEN_LEFT)
        chosen = sample_ops.greedy(logits)
        drawing = np.flatnonzero(choices["rate"])
        for first in range(0, len(drawing), _ROWS_AT_ONCE):
            some = drawing[first : first + _ROWS_AT_ONCE]
            chosen[some] = _draw(logits[some], choices[some])
        return torch.where(tokens < 0, tokens, chosen)


class Describe(Bindable):
    """Log probabilities and ranks of a chosen token and of the likeliest ones."""

    op: ClassVar[str] = "logprobs"
    row_invariant: ClassVar[bool] = True

    def __init__(self, vocab_size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.vocab_size, self.dtype = vocab_size, dtype

    def spec(self) -> OpSpec:
        return OpSpec(self.op, dtype_name(self.dtype), shape={"vocabulary": self.vocab_size})

    def reference(self, logits: Tensor, rows: Tensor, tokens: Tensor, most: int) -> Tensor:
        """logits [R, vocabulary], any float dtype; rows int64, which of them; tokens int64 [R]; all on one device.

        The answer, int64 [rows, 2 + most, 3] for ``told``, stays on the device, or the host where that computes, with
        ``most`` at most the vocabulary. An entry is (id, bits of the logit as float32, rank): first of the row's token,
        then of the ``most`` likeliest; among equals the lower id stands first. A token's rank is 1 plus the number of
        strictly likelier ones. The last entry is (weight of all tokens, bits of the largest logit, 1). Its third number
        is 0 where the row's logits are not finite or its token is negative: nothing else of the row counts then.
        """
        picked, own = logits[rows].float(), tokens[rows]
        sound = sample_ops.finite(picked) & (own >= 0)
        picked, chosen = picked.nan_to_num_(), own.clamp(min=0).unsqueeze(-1)
        ranks = (picked > picked.gather(-1, chosen)).sum(dim=-1, keepdim=True) + 1
        ids, places = _likeliest(picked, most)
        ids = torch.cat((chosen, ids), dim=-1)
        entries = (ids, _bits(picked.gather(-1, ids)), torch.cat((ranks, places), dim=-1))
        weights = sample_ops.weigh(picked, picked.new_full((len(picked),), sample_ops.rate(1.0)))
        last = torch.stack((weights.sum(dim=-1), _bits(picked.amax(dim=-1)), sound.long()), dim=-1)
        return torch.cat((torch.stack(entries, dim=-1), last.unsqueeze(1)), dim=1)


def told(described: Int64s) -> npt.NDArray[np.float64]:
    """What ``Describe`` says of sound rows, on the host: float64 [rows, 1 + most, 3] of (id, log probability, rank).

    Logarithms are taken here, in float64, which not every device has.
    """
    entries, (total, best) = described[:, :-1], described[:, -1, :2].T
    normaliser = _floats(best) + np.log(total.astype(np.float64)) - sample_ops.WEIGHT_BITS * math.log(2.0)
    columns = (entries[..., 0], _floats(entries[..., 1]) - normaliser[:, None], entries[..., 2])
    return np.stack(columns, axis=-1).astype(np.float64)


class Sampling(nn.Module):
    """The ops of a model's sampler, a place where kernels are bound.

    ``processed`` says that log probabilities are described of ``processed_logits``.
    """

    def __init__(self, vocab_size: int = 0, dtype: torch.dtype = torch.float32, *, processed: bool = False) -> None:
        super().__init__()
        self.processed = processed
        self.choose, self.describe = Choose(vocab_size, dtype), Describe(vocab_size, dtype)


def _fail(logits: Tensor, tokens: Tensor, sound: Tensor, why: int) -> None:
    """Mark rows that are not sound and unmarked; they are zeroed so that the other stages meet numbers only."""
    tokens.masked_fill_(~sound & (tokens == 0), why)  # an index would have the host count what the mask lets through
    logits.masked_fill_(~sound.unsqueeze(-1), 0.0)


def edit_logits(logits: Tensor, choices: Choices, edits: Edits) -> None:
    """Apply the edits to ``logits`` float32 [rows, vocabulary], kind by kind. In place."""
    row_of = np.repeat(np.arange(len(choices)), choices["edits"])

    def pairs(kind: Kind) -> tuple[Tensor, ...]:
        """Rows, tokens, first and second arguments of the edits of a kind."""
        some = np.flatnonzero(edits["kind"] == kind)
        columns = (row_of[some], edits["token"][some].astype(np.int64), edits["first"][some], edits["second"][some])
        return tuple(torch.from_numpy(column).to(logits.device) for column in columns)

    only = torch.from_numpy(np.flatnonzero(choices["only"])).to(logits.device)
    sample_ops.allow_only(logits, only, *pairs(Kind.ALLOW)[:2])
    sample_ops.forbid(logits, *pairs(Kind.FORBID)[:2])
    sample_ops.add_bias(logits, *pairs(Kind.ADD)[:3])
    sample_ops.penalize(logits, *pairs(Kind.PENALIZE))


def likelihoods(logits: Tensor, choices: Choices, edits: Edits) -> Tensor:
    """float32 [rows, vocabulary]: how likely ``Choose`` is to draw each token, of rows that it draws for."""
    logits = logits.to(torch.float32, copy=True).nan_to_num_()
    if len(edits) or choices["only"].any():
        edit_logits(logits, choices, edits)
    weights = _weigh(logits, choices).to(torch.float32)
    return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1.0)


def processed_logits(logits: Tensor, choices: Choices, edits: Edits) -> Tensor:
    """float32 [rows, vocabulary]: edited ``logits`` over the temperature, minus infinity where a filter drops a token.

    Greedy rows are only edited. Unlike ``likelihoods`` this does not round small probabilities to zero.
    """
    logits = logits.to(torch.float32, copy=True).nan_to_num_()
    if len(edits) or choices["only"].any():
        edit_logits(logits, choices, edits)
    drawn = np.flatnonzero(choices["rate"])
    if len(drawn):
        rows, some = torch.from_numpy(drawn).to(logits.device), choices[drawn]
        scale = torch.from_numpy(some["rate"] / np.float32(sample_ops.rate(1.0))).to(logits)
        filtered = torch.from_numpy((some["top_p"] < WHOLE) | (some["min_p"] > 0)).to(logits.device)
        top_k = some["top_k"]
        kept = _filter(logits[rows], sample_ops.top_k, top_k, (top_k > 0) & (top_k < logits.shape[-1]))
        dropped = (_weigh(kept.clone(), some) == 0) & filtered.unsqueeze(-1)
        logits[rows] = (kept * scale.unsqueeze(-1)).masked_fill_(dropped, float("-inf"))
    return logits


def _draw(logits: Tensor, choices: Choices) -> Tensor:
    """The filters, the temperature and the draw; int64 [rows]. ``logits`` is used up."""
    weights = _weigh(logits, choices)
    draws = uniform(choices["seed"].tolist(), choices["position"].tolist())
    return sample_ops.draw(weights, torch.from_numpy(draws).to(weights.device))


def _weigh(logits: Tensor, choices: Choices) -> Tensor:
    """What each token counts in the draw, after the filters and the temperature. ``logits`` is used up."""
    top_k, top_p, min_p = choices["top_k"], choices["top_p"], choices["min_p"]
    logits = _filter(logits, sample_ops.top_k, top_k, (top_k > 0) & (top_k < logits.shape[-1]))
    weights = sample_ops.weigh(logits, torch.from_numpy(choices["rate"].copy()).to(logits.device))
    weights = _filter(weights, sample_ops.top_p, top_p, top_p < WHOLE)
    return _filter(weights, sample_ops.min_p, min_p, min_p > 0)


def _filter(x: Tensor, op: Callable[[Tensor, Tensor], Tensor], values: Int64s, wanted: npt.NDArray[np.bool_]) -> Tensor:
    """Apply ``op`` with their values to the rows that want it."""
    if not wanted.any():
        return x
    argument = torch.from_numpy(values[wanted]).to(x.device)
    if wanted.all():
        return op(x, argument)
    rows = torch.from_numpy(np.flatnonzero(wanted)).to(x.device)
    x[rows] = op(x[rows], argument)
    return x


def _likeliest(logits: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Ids and ranks of the best tokens, int64 [rows, most]; by descending logit, then by id.

    No shape depends on values, so no host waits for a device here.
    """
    most = min(most, logits.shape[-1])
    if most == 0:
        nothing = torch.empty((len(logits), 0), dtype=torch.int64, device=logits.device)
        return nothing, nothing
    bits = _bits(logits + 0.0)  # 0.0 and -0.0 are one
    keys = torch.where(bits < 0, bits ^ _BELOW_SIGN, bits)
    order = (keys << 32) - torch.arange(logits.shape[-1], device=logits.device)  # no two of a row are equal
    ids = order.topk(most, dim=-1).values.neg_().bitwise_and_((1 << 32) - 1)
    values = logits.gather(-1, ids)
    ranks = torch.searchsorted(-values, -values) + 1
    return ids, ranks


def _bits(x: Tensor) -> Tensor:
    """Those of float32 as int64."""
    return x.contiguous().view(torch.int32).long()


def _floats(bits: Int64s) -> npt.NDArray[np.float64]:
    return bits.astype(np.int32).view(np.float32).astype(np.float64)
