"""Choosing and describing tokens on the device; see ``lsv_triton.sampling.kernels``.

Choices and edits go to the device in one copy, with the random numbers drawn on the host, and nothing comes back: the
tokens stay there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton

from lsv.nn.philox import uniform
from lsv.nn.sample_ops import WEIGHT_BITS
from lsv.nn.sampling import Choices, Choose, Describe, Edits, Int64s, Kind
from lsv.offers import OpSpec
from lsv.ops import Kernel
from lsv_triton.device_table import launch
from lsv_triton.sampling import kernels as kernels

_ROWS_AT_ONCE = 32
"""Rows drawn together: each has room for a whole vocabulary of candidates, 12 bytes each."""

_MOST_RANKED = 1024
"""Likeliest tokens that are found one by one; who wants more gets them from the reference."""

_ZERO = 0  # see lsv_triton.sampling.weights


class DeviceChoose(Kernel):
    """``lsv.nn.sampling.Choose``; the same tokens to the bit, whatever the device."""

    def __init__(self, module: Choose, spec: OpSpec) -> None:
        """Neither the module's numbers nor its dtype are needed: those of the logits are taken."""

    def forward(self, logits: torch.Tensor, choices: Choices, edits: Edits) -> torch.Tensor:
        tokens = torch.empty(len(choices), dtype=torch.int64, device=logits.device)
        if not len(choices):
            return tokens
        logits = _dense(logits)
        table, changes = _send(choices, edits, logits.device)
        edited = _edit(logits, table, changes, edits) if len(edits) or choices["only"].any() else logits
        for first in range(0, len(choices), _ROWS_AT_ONCE):
            some = slice(first, first + _ROWS_AT_ONCE)
            drawing = bool(choices["rate"][some].any())
            _choose(logits[some], edited[some], table[some], tokens[some], edited is not logits, drawing)
        return tokens


class DeviceDescribe(Kernel):
    """``lsv.nn.sampling.Describe``, without a vocabulary of log probabilities and without sorting one."""

    def __init__(self, module: Describe, spec: OpSpec) -> None:
        self._module = module

    def forward(self, logits: torch.Tensor, rows: Int64s, chosen: Int64s, most: int) -> torch.Tensor:
        most = min(most, logits.shape[1])
        if most > _MOST_RANKED:
            return self._module.reference(logits, rows, chosen, most)
        told = _describe(_dense(logits), rows, chosen, most).cpu().numpy()
        entries, (total, best) = told[:, :-1], told[:, -1, :2].T
        values = _floats(entries[..., 1])
        normaliser = _floats(best) + np.log(total.astype(np.float64)) - WEIGHT_BITS * np.log(2.0)
        columns = (entries[..., 0].astype(np.float64), values - normaliser[:, None], entries[..., 2])
        return torch.from_numpy(np.stack(columns, axis=-1).astype(np.float64))


@dataclass(frozen=True, slots=True)
class _Survey:
    """What is known of rows, chunk by chunk; see ``kernels.survey``."""

    sound: torch.Tensor
    keys: torch.Tensor
    ids: torch.Tensor
    groups: torch.Tensor
    chunks: int
    per_chunk: int

    def sizes(self) -> dict[str, int]:
        groups = triton.next_power_of_2(self.chunks * self.per_chunk)
        return {"CHUNKS": triton.next_power_of_2(self.chunks), "GROUPS": groups, "PER_CHUNK": self.per_chunk}


def _survey(logits: torch.Tensor, x: torch.Tensor, rows: torch.Tensor) -> _Survey:
    tile, vocabulary, device = launch("survey", x.device), x.shape[1], x.device
    chunk, group = tile["chunk"], kernels.GROUP.value
    chunks = triton.cdiv(vocabulary, chunk)
    sound, keys, ids = torch.empty((3, len(rows), chunks), dtype=torch.int32, device=device)
    groups = torch.empty((len(rows), chunks, chunk // group), dtype=torch.int32, device=device)
    kernels.survey[(len(rows), chunks)](
        logits, x, rows, sound, keys, ids, groups, logits.stride(0), x.stride(0), vocabulary,
        CHUNK=chunk, num_warps=tile.warps,
    )  # fmt: skip
    return _Survey(sound, keys, ids, groups, chunks, chunk // group)


def _choose(
    logits: torch.Tensor, x: torch.Tensor, table: torch.Tensor, tokens: torch.Tensor, edited: bool, drawing: bool
) -> None:
    """Choose tokens of rows: logits as they came, ``x`` as edited, their part of the choices."""
    rows, vocabulary, device = len(x), x.shape[1], x.device
    survey = _survey(logits, x, torch.arange(rows, device=device))
    listed = _room(rows if drawing else 0, vocabulary, device)
    found = torch.empty((rows, 2), dtype=torch.int64, device=device)
    tile, rates = launch("sample", device), table.view(torch.float32)
    kernels.list_candidates[(rows,)](
        x, table, rates, survey.sound, survey.keys, survey.ids, survey.groups, tokens, *listed, found,
        x.stride(0), vocabulary, survey.chunks, _ZERO, EDITED=edited, DRAWING=drawing, **survey.sizes(),
        BLOCK=tile["tokens"], num_warps=tile.warps,
    )  # fmt: skip
    if drawing:
        tile = launch("draw", device)
        kernels.draw[(rows,)](table, *listed, found, tokens, vocabulary, BLOCK=tile["tokens"], num_warps=tile.warps)


def _describe(logits: torch.Tensor, rows: Int64s, chosen: Int64s, most: int) -> torch.Tensor:
    """``told`` of ``kernels.describe``."""
    device, vocabulary, count = logits.device, logits.shape[1], len(rows)
    which, own = torch.from_numpy(np.stack((rows, chosen))).to(device)
    survey = _survey(logits, logits, which)
    listed = _room(count if most else 0, vocabulary, device)
    counts = torch.empty(count, dtype=torch.int64, device=device)
    told = torch.empty((count, 2 + most, 3), dtype=torch.int64, device=device)
    tile = launch("sample", device)
    kernels.describe[(count,)](
        logits, which, own, survey.keys, survey.groups, *listed, told, counts, logits.stride(0), vocabulary,
        survey.chunks, most, _ZERO, **survey.sizes(), BLOCK=tile["tokens"], num_warps=tile.warps,
    )  # fmt: skip
    if most:
        tile = launch("draw", device)
        kernels.rank[(count,)](*listed[:2], counts, told, vocabulary, most, BLOCK=tile["tokens"], num_warps=tile.warps)
    return told


def _room(rows: int, vocabulary: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For candidates: their ids, keys and weights."""
    ids, keys, weights = torch.empty((3, rows, vocabulary), dtype=torch.int32, device=device)
    return ids, keys, weights.view(torch.float32)


def _send(choices: Choices, edits: Edits, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Choices int64 [rows, columns], a draw in the place of each seed; edits int32 [count, 6], each with its row."""
    drawn = choices.copy()
    drawn["seed"] = uniform(choices["seed"].tolist(), choices["position"].tolist())
    rows = np.repeat(np.arange(len(choices)), choices["edits"])[:, None]
    changes = np.concatenate((rows, np.ascontiguousarray(edits).view(np.int64).reshape(-1, 2)), axis=1)
    sent = torch.from_numpy(np.concatenate((drawn.view(np.int64), changes.reshape(-1))))
    if device.type != "cpu":
        sent = sent.pin_memory().to(device, non_blocking=True)
    border = len(choices) * kernels.COLUMNS.value
    table, changed = sent[:border], sent[border:].view(torch.int32)
    return table.view(-1, kernels.COLUMNS.value), changed.view(-1, kernels.EDIT_COLUMNS.value)


def _edit(logits: torch.Tensor, table: torch.Tensor, changes: torch.Tensor, edits: Edits) -> torch.Tensor:
    """A float32 copy of the logits with the edits, kind by kind."""
    edited = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    only = table.view(torch.int32)[:, 1]
    edited.masked_fill_((only != 0).unsqueeze(-1), float("-inf"))
    tile = launch("edit", logits.device)
    grid = (triton.cdiv(len(changes), tile["edits"]),)
    for kind in Kind:
        if (edits["kind"] == kind).any():
            kernels.edit[grid](
                logits, edited, changes, changes.view(torch.float32), len(changes), logits.stride(0), logits.shape[1],
                _ZERO, KIND=int(kind), BLOCK=tile["edits"], num_warps=tile.warps,
            )  # fmt: skip
    return edited


def _dense(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.stride(1) == 1 else logits.contiguous()


def _floats(bits: Int64s) -> np.ndarray:
    return bits.astype(np.int32).view(np.float32).astype(np.float64)
