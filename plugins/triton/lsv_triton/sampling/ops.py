"""Choosing and describing tokens on the device; see ``lsv_triton.sampling.kernels`` and ``describing``.

Choices and edits go to the device in one copy, with the random numbers drawn on the host, and nothing comes back: the
tokens stay there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton

from lsv.offers import OpSpec
from lsv_runtime.devices.staging import send
from lsv_runtime.nn.philox import uniform
from lsv_runtime.nn.sampling import Choices, Choose, Describe, Edits, Kind
from lsv_runtime.ops import Kernel
from lsv_triton.device_table import launch
from lsv_triton.sampling import candidates, describing, kernels

_MOST_RANKED = 1024
"""Likeliest tokens that are found one by one; who wants more gets them from the reference."""

_ZERO = 0  # see lsv_triton.sampling.weights


class DeviceChoose(Kernel):
    """``lsv_runtime.nn.sampling.Choose``; the same tokens to the bit, whatever the device."""

    def __init__(self, module: Choose, spec: OpSpec) -> None:
        """Neither the module's numbers nor its dtype are needed: those of the logits are taken."""

    def forward(self, logits: torch.Tensor, choices: Choices, edits: Edits) -> torch.Tensor:
        tokens = torch.empty(len(choices), dtype=torch.int64, device=logits.device)
        if not len(choices):
            return tokens
        logits = _dense(logits)
        table, changes = _send(choices, edits, logits.device)
        edited = _edit(logits, table, changes, edits) if len(edits) or choices["only"].any() else logits
        _choose(logits, edited, table, tokens, int(np.count_nonzero(choices["rate"])))
        return tokens


class DeviceDescribe(Kernel):
    """``lsv_runtime.nn.sampling.Describe``, without a vocabulary of log probabilities and without sorting one."""

    def __init__(self, module: Describe, spec: OpSpec) -> None:
        self._module = module

    def forward(self, logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, most: int) -> torch.Tensor:
        most = min(most, logits.shape[1])
        if most > _MOST_RANKED:
            return self._module.reference(logits, rows, tokens, most)
        return _describe(_dense(logits), rows, tokens, most)


@dataclass(frozen=True, slots=True)
class _Survey:
    """What is known of rows, chunk by chunk; see ``kernels.survey``."""

    sound: torch.Tensor
    keys: torch.Tensor
    ids: torch.Tensor
    groups: torch.Tensor
    chunk: int

    def sizes(self) -> dict[str, int]:
        _, chunks, per_chunk = self.groups.shape
        groups = triton.next_power_of_2(chunks * per_chunk)
        return {"CHUNKS": triton.next_power_of_2(chunks), "GROUPS": groups, "PER_CHUNK": per_chunk}


def _survey(logits: torch.Tensor, x: torch.Tensor, rows: torch.Tensor | None = None) -> _Survey:
    """Of these rows, or of all."""
    tile, vocabulary, device = launch("survey", x.device), x.shape[1], x.device
    chunk, group, count = tile["chunk"], candidates.GROUP.value, len(x) if rows is None else len(rows)
    chunks = triton.cdiv(vocabulary, chunk)
    sound, keys, ids = torch.empty((3, count, chunks), dtype=torch.int32, device=device)
    groups = torch.empty((count, chunks, chunk // group), dtype=torch.int32, device=device)
    kernels.survey[(count, chunks)](
        logits, x, ids if rows is None else rows, sound, keys, ids, groups, logits.stride(0), x.stride(0), vocabulary,
        PICKED=rows is not None, CHUNK=chunk, num_warps=tile.warps,
    )  # fmt: skip
    return _Survey(sound, keys, ids, groups, chunk)


def _choose(logits: torch.Tensor, x: torch.Tensor, table: torch.Tensor, tokens: torch.Tensor, drawn: int) -> None:
    """Choose tokens of rows: logits as they came, ``x`` as edited, the choices; ``drawn`` of the rows draw."""
    rows, vocabulary, device = len(table), x.shape[1], x.device
    survey, rates, tile = _survey(logits[:rows], x[:rows]), table.view(torch.float32), launch("best", device)
    chunks, sizes = survey.keys.shape[1], survey.sizes()
    bounds, counts = (tokens, tokens) if not drawn else _bounds(drawn, 3, device)
    kernels.find_best[(rows,)](
        table, rates, survey.sound, survey.keys, survey.ids, survey.groups, tokens, bounds, counts, vocabulary, chunks,
        _ZERO, EDITED=x is not logits, DRAWING=drawn > 0, **sizes, num_warps=tile.warps,
    )  # fmt: skip
    if not drawn:
        return
    sums = torch.empty((drawn, chunks), dtype=torch.int64, device=device)
    keys, ids, room = _lists(drawn, vocabulary, device)
    asked = (x, table, rates, tokens, bounds, counts, sums, keys, ids, x.stride(0), vocabulary)
    kernels.list_candidates[(rows, chunks)](
        *asked, _ZERO, ROOM=room, CHUNK=survey.chunk, num_warps=launch("list", device).warps
    )
    tile = launch("draw", device)
    first = 16 - -(-(vocabulary - 1).bit_length() // 2)
    kernels.draw[(rows,)](
        *asked, chunks, _ZERO, ROOM=room, CHUNK=survey.chunk, CHUNKS=sizes["CHUNKS"], FIRST=first,
        BLOCK=tile["tokens"], num_warps=tile.warps,
    )  # fmt: skip


def _describe(logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, most: int) -> torch.Tensor:
    device, vocabulary, count = logits.device, logits.shape[1], len(rows)
    survey = _survey(logits, logits, rows)
    chunks, sizes = survey.keys.shape[1], survey.sizes()
    bounds, counts = _bounds(count, 2, device)
    describing.find_border[(count,)](
        survey.keys, survey.groups, bounds, counts, chunks, most, **sizes, num_warps=launch("best", device).warps
    )
    sums = torch.empty((count, chunks, 2), dtype=torch.int64, device=device)
    keys, ids, room = _lists(count if most else 0, vocabulary, device)
    told = torch.empty((count, 2 + most, 3), dtype=torch.int64, device=device)
    found = (bounds, counts, sums, keys, ids)
    describing.describe[(count, chunks)](
        logits, rows, tokens, *found, logits.stride(0), vocabulary, most, _ZERO, ROOM=room, CHUNK=survey.chunk,
        num_warps=launch("list", device).warps,
    )  # fmt: skip
    tile = launch("draw", device)
    describing.rank[(count,)](
        logits, rows, tokens, survey.sound, *found, told, logits.stride(0), vocabulary, chunks, most, ROOM=room,
        CHUNKS=sizes["CHUNKS"], BLOCK=tile["tokens"], num_warps=tile.warps,
    )  # fmt: skip
    return told


def _bounds(rows: int, columns: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """For bounds of candidates int64 [rows, columns], and their numbers int32 [rows]."""
    bounds = torch.empty((rows, columns), dtype=torch.int64, device=device)
    return bounds, torch.empty(rows, dtype=torch.int32, device=device)


def _lists(rows: int, vocabulary: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, int]:
    """For candidates: keys and ids, int32 [rows, room], and the room."""
    room = min(launch("draw", device)["room"], triton.next_power_of_2(vocabulary))
    keys, ids = torch.empty((2, rows, room), dtype=torch.int32, device=device)
    return keys, ids, room


def _send(choices: Choices, edits: Edits, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Choices int64 [rows, columns], see ``kernels.COLUMNS``; edits int32 [count, 6], each with its row."""
    told = choices.copy()
    drawn = np.flatnonzero(choices["rate"])
    told["seed"][drawn] = uniform(choices["seed"][drawn].tolist(), choices["position"][drawn].tolist())
    told["position"][drawn] = np.arange(len(drawn))
    rows = np.repeat(np.arange(len(choices)), choices["edits"])[:, None]
    changes = np.concatenate((rows, np.ascontiguousarray(edits).view(np.int64).reshape(-1, 2)), axis=1)
    sent = send(np.concatenate((told.view(np.int64), changes.reshape(-1))), device)
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
