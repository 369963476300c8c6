"""Drafts by a model that reads the states of the model that answers, as far as these were seen.

It keeps up with a sequence: states of a prompt are computed as they come, those of an answer once drafts are wanted, or
when several wait. What the model that answers finds in its prefix cache has no states, so there the drafter begins
behind it: it then knows less of the text, and drafts as well as it can.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.config import Drafts, EngineConfig
from lsv.plugins.catalog import Catalog
from lsv.resolve.locate import read_config
from lsv_base.errors import ConfigError
from lsv_drafters.checkpoint import open_heads
from lsv_drafters.choices import choices_behind, tell
from lsv_drafters.model.config import draft_config
from lsv_drafters.model.kept import Pool
from lsv_drafters.model.room import Room
from lsv_drafters.model.sizes import step_limits, weigh
from lsv_drafters.states.eagle import Eagle, Eagle3
from lsv_drafters.states.source import Shared
from lsv_drafters.states.track import Track
from lsv_runtime.devices.staging import send
from lsv_runtime.drafts.drafter import Draftable, Drafter, Passage, Site
from lsv_runtime.drafts.reader import StateReader
from lsv_runtime.nn.model import Architecture, Model
from lsv_runtime.nn.step import Embeddings
from lsv_runtime.weights.checkpoint import CheckpointSource
from lsv_runtime.weights.halves import Half
from lsv_runtime.worker.inputs import Batch
from lsv_runtime.worker.load.bound import Bound, bind
from lsv_runtime.worker.load.declared import declare
from lsv_runtime.worker.load.loaded import fill, open_source
from lsv_runtime.worker.runner import ForwardResult, ModelRunner
from lsv_runtime.worker.sampling.edits import NO_EDITS

Int64s = npt.NDArray[np.int64]

_NAME = "states"
_WAITING = 32
"""States of a sequence that may wait for drafts to be wanted."""


@dataclass(slots=True)
class Row:
    """A sequence whose waiting states are computed."""

    track: Track
    ids: npt.NDArray[np.int32]
    """The tokens behind those that wait."""
    size: int = 0
    """How many of them a pass computes."""
    asked: Draftable | None = None
    place: int = 0
    """Of ``asked``, among those that were asked for."""

    @property
    def wanted(self) -> int:
        return 0 if self.asked is None else self.asked.most


class StatesDrafter(Drafter):
    """Runs whole on every rank. Draws with the random numbers that drafts are verified with."""

    reads_all: ClassVar[bool] = True

    @abc.abstractmethod
    def architecture(self, config: EngineConfig, catalog: Catalog) -> Architecture:
        """The class of the ``StateReader``. Raises ``StartError``."""

    def half(self, config: EngineConfig, catalog: Catalog) -> Half | None:
        """Where the model that answers is in a checkpoint that is its drafter's, too, and holds more."""
        return None

    @abc.abstractmethod
    def open(self, config: EngineConfig, own: EngineConfig, bound: Bound, catalog: Catalog) -> CheckpointSource:
        """Its weights; ``own`` is the configuration under which it is loaded."""

    def weigh(self, config: EngineConfig, catalog: Catalog) -> int:
        return weigh(*self._bind(config, catalog, torch.device("cpu")))

    def _bind(self, config: EngineConfig, catalog: Catalog, device: torch.device) -> tuple[Bound, EngineConfig]:
        """The model without its weights, and the configuration under which it is loaded."""
        own = draft_config(config)
        architecture, half = self.architecture(config, catalog), self.half(config, catalog)
        declared = declare(own, catalog, torch_device=device, architecture=architecture, half=half)
        return bind(declared, own, catalog), draft_config(config, len(declared.groups))

    def start(self, site: Site) -> None:
        device, catalog = site.device, site.catalog
        bound, own = self._bind(site.config, catalog, device.torch_device)
        declared, blocks = bound.declared, own.num_blocks or 0
        with closing(self.open(site.config, own, bound, catalog)) as source:
            fill(declared, source)
        device.release_cache()
        model = declared.model
        assert isinstance(model, StateReader)
        model.check(invented=own.load_format == "dummy")
        limits = step_limits(own, blocks, bound.backend)
        cache, self._padded = bound.allocate(blocks + 1, own, device), own.layout == "padded"
        self._runner = ModelRunner(
            model, bound.backend, declared.groups, cache, device, device.shapes(limits), padded=self._padded
        )
        self._model, self._groups, self._limits = model, len(declared.groups), limits
        self._pool = Pool(blocks, own.block_size, self._groups)
        self._sampling, self._vocabulary = site.sampling, site.model.vocab_size
        self._longest = own.max_model_len

    @torch.inference_mode()
    def read(self, passages: Sequence[Passage]) -> None:
        rows: list[Row] = []
        for one in passages:
            track: Track = one.memory.setdefault(_NAME, Track(self._groups))
            waited = track.behind
            track.add(one.start, one.states)
            ends = track.end == len(one.ids) - 1  # and if drafts are wanted behind it, that is what comes next
            if track.end > self._longest:
                self._pool.release(track)
            elif (waited if ends else track.behind) > _WAITING:
                rows.append(Row(track, one.ids[track.begin + track.done + 1 : track.end + 1]))
        if rows:  # the others' states must not hold on to the step's
            going = {id(row.track) for row in rows}
            for one in passages:
                track = one.memory[_NAME]
                if id(track) not in going and track.waiting:
                    track.waiting[-1] = track.waiting[-1].clone()
        while rows:
            admitted = self._admit(rows)
            if admitted:
                self._compute(admitted)
            for row in rows if not admitted else ():
                self._pool.release(row.track)
            rows = [row for row in rows if row.track.behind]

    @torch.inference_mode()
    def propose(self, sequences: Sequence[Draftable]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in sequences]
        rows = []
        for place, one in enumerate(sequences):
            track = one.memory.get(_NAME)
            known = isinstance(track, Track) and track.waiting and track.end == len(one.ids) - 1
            if known and len(one.ids) + one.most <= self._longest:
                rows.append(Row(track, one.ids[track.begin + track.done + 1 :], place=place, asked=one))
        admitted = self._admit(sorted(rows, key=lambda row: -row.wanted))  # those that want most stay to the end
        rows = [row for row in admitted if row.size == row.track.behind]
        drawn = self._draft(rows)
        for row, drafts in zip(rows, tell(drawn, len(rows)), strict=True):
            found[row.place] = drafts
        return found

    def end(self, memory: dict[str, Any]) -> None:
        track = memory.pop(_NAME, None)
        if isinstance(track, Track):
            self._pool.release(track)

    def _admit(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that a pass has room for, and that there are blocks for."""
        admitted: list[Row] = []
        busy: list[Track] = []
        room = Room(self._limits, padded=self._padded)
        for row in rows:
            track, row.size = row.track, room.fit(row.track.behind)
            if not row.size or not self._pool.grow(track, track.done + row.size + row.wanted, [*busy, track]):
                continue
            busy.append(track)
            self._pool.use(track)
            room.take(row.size)
            admitted.append(row)
        return admitted

    def _draft(self, rows: Sequence[Row]) -> list[Tensor]:
        """For each place the drafts of the first rows, of which the ones that want most come first."""
        if not rows:
            return []
        ran, states = self._compute(rows)
        asked = [row.asked for row in rows if row.asked is not None]
        drawn: list[Tensor] = []
        for place in range(rows[0].wanted):
            staying = [one for one in asked if one.most > place]
            if place:
                ran, states = self._go_on(
                    rows[: len(staying)], drawn[-1][: len(staying)], states[: len(staying)], place
                )
            logits = self._runner.head(ran, states[: len(staying)])[:, : self._vocabulary]
            drawn.append(self._sampling.choose(logits.contiguous(), choices_behind(staying, place), NO_EDITS))
        return drawn

    def _compute(self, rows: Sequence[Row]) -> tuple[ForwardResult, Tensor]:
        """The states of the rows that wait; those [rows, hidden] that the model makes of the last ones."""
        count = np.array([row.size for row in rows], np.int64)
        done = np.array([row.track.done for row in rows], np.int64)
        begin = np.array([row.track.begin for row in rows], np.int64) + done
        states = torch.cat([row.track.take(row.size) for row in rows])
        ids = send(np.concatenate([row.ids[: row.size] for row in rows]).astype(np.int64), states.device)
        ends = count.cumsum()
        positions = np.arange(len(ids)) + np.repeat(begin - (ends - count), count)
        for row in rows:
            row.ids = row.ids[row.size :]
        return self._run(rows, ids, self._model.merge(states), positions, count, done + count)

    def _go_on(self, rows: Sequence[Row], ids: Tensor, states: Tensor, place: int) -> tuple[ForwardResult, Tensor]:
        """From the drafts int64 [rows] of the place before, and the model's own states there."""
        every = np.array([row.track.done + place for row in rows], np.int64)
        begin = np.array([row.track.begin for row in rows], np.int64)
        return self._run(rows, ids.clamp(min=0), states, begin + every - 1, np.ones(len(rows), np.int64), every)

    def _run(
        self, rows: Sequence[Row], ids: Tensor, states: Tensor, positions: Int64s, count: Int64s, context: Int64s
    ) -> tuple[ForwardResult, Tensor]:
        layout = self._pool.layout([row.track for row in rows], count, context)
        batch = Batch(np.zeros(len(ids), np.int64), positions[None], layout, count.cumsum() - 1)
        x = self._model.begin(ids, states, send(positions, states.device))
        kind = "decode" if count.max() == 1 else "prefill"

        def place(laid: Batch) -> Embeddings:
            firsts = laid.last[: len(rows)] - count + 1
            places = np.arange(len(x)) + np.repeat(firsts - (count.cumsum() - count), count)
            return Embeddings(send(places.astype(np.int64), x.device), x)

        ran = self._runner.run(kind, batch, lambda laid: laid.last, place)
        return ran, ran.hidden[: len(rows)]


class EagleDrafter(StatesDrafter):
    """By a checkpoint of heads; embeddings and the matrix of logits may be those of the model that answers."""

    reader: ClassVar[type[Eagle]] = Eagle

    def __init__(self, drafts: Drafts) -> None:
        assert drafts.model is not None
        self._folder = Path(drafts.model.folder)

    def taps(self, model: Model) -> tuple[int, ...]:
        return self.reader.taps(read_config(self._folder, {}), len(model.layers))

    def architecture(self, config: EngineConfig, catalog: Catalog) -> Architecture:
        with closing(open_heads(self._folder)) as source:
            names = frozenset(map(self.reader.rename_tensor, source.tensors()))
        make: Any = partial(self.reader, names=names)
        make.prefixes = ()
        return make  # type: ignore[no-any-return]

    def open(self, config: EngineConfig, own: EngineConfig, bound: Bound, catalog: Catalog) -> CheckpointSource:
        heads = open_source(own, bound.declared, catalog)
        if own.load_format == "dummy":
            return heads
        return Shared(heads, self.reader.rename_tensor, open_source(config, bound.declared, catalog))

    def start(self, site: Site) -> None:
        hidden = int(next(site.model.norm.parameters()).shape[-1])
        config: Mapping[str, Any] = read_config(self._folder, {})
        reads = config.get("target_hidden_size") or config.get("hidden_size")
        if reads != hidden:
            raise ConfigError(
                f"speculative_model: {self._folder} reads states of {reads} numbers, and those of this model have "
                f"{hidden}: it was made for another model",
                param="speculative_model",
            )
        super().start(site)


class Eagle3Drafter(EagleDrafter):
    reader: ClassVar[type[Eagle]] = Eagle3
