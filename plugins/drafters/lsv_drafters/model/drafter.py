"""Drafts by a smaller language model: it reads what it has not read of a sequence, and goes on with it token by token.

Its keys and values lie in a cache of its own, by sequence. So what the larger model finds in its prefix cache, cuts
into chunks, or computes again after a preemption is none of its business: it compares what it has kept with what a
sequence is now, and computes the rest. A long rest is computed over several steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.config import Drafts, EngineConfig
from lsv.plugins.catalog import Catalog
from lsv_base.errors import ConfigError
from lsv_drafters.choices import choices_behind, tell
from lsv_drafters.model.config import draft_config
from lsv_drafters.model.kept import Kept, Pool
from lsv_drafters.model.room import Room
from lsv_drafters.model.sizes import step_limits, weigh
from lsv_runtime.devices.shapes import BatchLimits
from lsv_runtime.drafts.drafter import Draftable, Drafter, Site
from lsv_runtime.nn.sampling import Sampling
from lsv_runtime.worker.inputs import Batch
from lsv_runtime.worker.load.bound import bind
from lsv_runtime.worker.load.declared import Declared, declare
from lsv_runtime.worker.load.loaded import load
from lsv_runtime.worker.runner import ModelRunner
from lsv_runtime.worker.sampling.edits import NO_EDITS

Int64s = npt.NDArray[np.int64]

_NAME = "draft_model"


@dataclass(slots=True)
class Row:
    """A sequence that is drafted for."""

    place: int
    """Among those that were asked for."""
    asked: Draftable
    kept: Kept
    start: int
    """The first token to compute."""
    stop: int
    """One more than the last one to compute at first; drafts follow where that is the sequence's last token."""

    @property
    def wanted(self) -> int:
        return self.asked.most if self.stop == len(self.asked.ids) else 0


class ModelDrafter(Drafter):
    """Draws with the random numbers that the drafts are verified with, so that both models say the same more often."""

    def __init__(self, drafts: Drafts) -> None:
        self._model = drafts.model

    def weigh(self, config: EngineConfig, catalog: Catalog) -> int:
        own = draft_config(config)
        bound = bind(declare(own, catalog), own, catalog)
        return weigh(bound, draft_config(config, len(bound.declared.groups)))

    def start(self, site: Site) -> None:
        catalog, device = site.catalog, site.device
        groups = declare(draft_config(site.config), catalog).groups
        own = draft_config(site.config, len(groups))
        loaded = load(own, catalog, device, None, lambda phase, done, total: None)
        declared = loaded.declared
        refuse_unfit(declared)
        limits = step_limits(own, loaded.fit.num_blocks, loaded.backend)
        self._runner = ModelRunner(
            declared.model,
            loaded.backend,
            declared.groups,
            loaded.allocate_cache(own, device),
            device,
            device.shapes(limits),
            padded=own.layout == "padded",
            slots=limits.max_rows,
        )
        self._runner.warm_up(lambda done, total: None, eager=own.enforce_eager)
        self._pool = Pool(loaded.fit.num_blocks, own.block_size, len(declared.groups))
        self._sampling: Sampling = declared.sampling
        self._limits: BatchLimits = limits
        self._longest, self._padded = own.max_model_len, own.layout == "padded"
        self._vocabulary = min(declared.vocab_size, site.model.vocab_size)
        self._groups = len(declared.groups)

    @torch.inference_mode()
    def propose(self, sequences: Sequence[Draftable]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in sequences]
        rows = self._admit(sequences)
        if not rows:
            return found
        most = max(row.wanted for row in rows)
        first = self._read(rows)
        drawn = [first] if most else []
        going = [row for row in rows if row.wanted]
        for place in range(1, most):
            staying = [row for row in going if row.wanted > place]
            drawn.append(self._go_on(staying, place))
        for row in rows:
            row.kept.tokens = row.asked.ids[: row.stop].copy()
        self._tell(going, drawn, found)
        return found

    def end(self, memory: dict[str, object]) -> None:
        kept = memory.pop(_NAME, None)
        if isinstance(kept, Kept):
            self._pool.release(kept)

    def _admit(self, sequences: Sequence[Draftable]) -> list[Row]:
        """The sequences that fit this model, as far as there are blocks for them and a step has room for their rest."""
        rows: list[Row] = []
        busy: list[Kept] = []
        room = Room(self._limits, padded=self._padded)
        for place, one in enumerate(sequences):
            kept: Kept = one.memory.setdefault(_NAME, Kept(self._groups))
            start, length = kept.computed(one.ids), len(one.ids)
            if length + one.most > self._longest or int(one.ids[start:].max()) >= self._vocabulary:
                continue
            stop = start + room.fit(length - start)
            needed = stop + (one.most if stop == length else 0)
            if stop == start or not self._pool.grow(kept, needed, [*busy, kept]):
                continue
            busy.append(kept)
            self._pool.use(kept)
            room.take(stop - start)
            rows.append(Row(place, one, kept, start, stop))
        rows.sort(key=lambda row: -row.wanted)  # those that want most drafts stay to the end
        return rows

    def _read(self, rows: Sequence[Row]) -> Tensor:
        """What follows the rows' sequences, as far as they are read to their end: int64 [rows that go on]."""
        ids = np.concatenate([row.asked.ids[row.start : row.stop] for row in rows]).astype(np.int64)
        start = np.array([row.start for row in rows], np.int64)
        count = np.array([row.stop - row.start for row in rows], np.int64)
        last = count.cumsum() - 1
        positions = np.arange(len(ids)) + np.repeat(start - (last + 1 - count), count)
        batch = self._lay_out(rows, ids, positions, count, start + count, last)
        return self._run("decode" if count.max() == 1 else "prefill", batch, [row for row in rows if row.wanted], 0)

    def _go_on(self, rows: Sequence[Row], place: int) -> Tensor:
        """The drafts of a place behind those of the place before, which only the device knows."""
        every = np.arange(len(rows))
        length = np.array([len(row.asked.ids) + place for row in rows], np.int64)
        ids = np.zeros(len(rows), np.int64)
        batch = self._lay_out(rows, ids, length - 1, np.ones(len(rows), np.int64), length, every, unknown=every)
        return self._run("decode", batch, rows, place)

    def _lay_out(
        self,
        rows: Sequence[Row],
        ids: Int64s,
        positions: Int64s,
        count: Int64s,
        context: Int64s,
        last: Int64s,
        unknown: Int64s | None = None,
    ) -> Batch:
        layout = self._pool.layout([row.kept for row in rows], count, context)
        nowhere = np.empty(0, np.int64) if unknown is None else unknown
        going = np.arange(sum(row.wanted > 0 for row in rows))
        return Batch(
            ids=ids,
            positions=np.tile(positions, (self._runner.axes, 1)),
            layout=layout,
            last=last,
            unknown=nowhere,
            awaited=nowhere,
            sampled=going,
        )

    def _run(self, kind: str, batch: Batch, rows: Sequence[Row], place: int) -> Tensor:
        """One pass; the tokens drawn for ``rows``, its first ones, which the next pass takes from the device."""
        ran = self._runner.run(kind, batch, lambda laid: laid.last)
        if not rows:
            return torch.empty(0, dtype=torch.int64)
        logits = self._runner.head(ran, ran.hidden)[: len(rows), : self._vocabulary]
        tokens: Tensor = self._sampling.choose(
            logits.contiguous(), choices_behind([row.asked for row in rows], place), NO_EDITS
        )
        self._runner.remember(ran.step, tokens)
        return tokens

    def _tell(self, rows: Sequence[Row], drawn: Sequence[Tensor], found: list[list[int]]) -> None:
        for row, drafts in zip(rows, tell(drawn, len(rows)), strict=True):
            found[row.place] = drafts
            row.kept.tokens = np.concatenate((row.kept.tokens, np.array(drafts[: row.wanted - 1], np.int32)))


def refuse_unfit(declared: Declared) -> None:
    """Raises ``ConfigError`` for a model whose cache can't be taken back, or that reads more than a sequence."""
    for group in declared.groups:
        if group.kind in ("state", "cross"):
            why = "has recurrent layers, whose states can't be taken back" if group.kind == "state" else "encodes texts"
            raise ConfigError(f"speculative_model: the draft model {why}: choose another", param="speculative_model")
