"""The model runner: host arrays to the device, attention plans, the layers, the head."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsv.attention import AttentionBackend, BatchLayout
from lsv.attention.tables import TableRows
from lsv.kv.spec import KVGroup
from lsv.nn import model as nn_model
from lsv.nn.model import Model
from lsv.nn.step import Embeddings, Step
from lsv.ops import find_uncapturable
from lsv.platform import Device, Fill, Shape, ShapePolicy, StepFn
from lsv.worker.inputs import Batch, dummy_batch, pad_batch
from lsv.worker.rehearsal import Rehearsal

log = logging.getLogger(__name__)

Int64s = npt.NDArray[np.int64]


Gather = Callable[[Batch], Embeddings | None]
"""The embeddings of media in a batch."""


def no_media(batch: Batch) -> None:
    """The embeddings in a batch of text."""


class Buffers:
    """The tensors of a step that runs repeatedly in one shape, and the compiled step that reads them."""

    def __init__(self, model: Model, step: Step) -> None:
        self.step = step
        self.run: StepFn = lambda: nn_model.run(model, self.step)


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """What a pass through the layers leaves behind."""

    hidden: Tensor
    """Normed hidden states [rows, hidden]; rows after the first ``wanted`` fill the shape up."""
    wanted: int
    """How many tokens' states were asked for."""
    step: Step
    """The step as it ran."""
    unwarmed: bool
    """Whether the step should have been compiled during warm-up and was not."""


class ModelRunner:
    """A filled model with its cache, and the shapes that were warmed up."""

    def __init__(
        self,
        model: Model,
        backend: AttentionBackend,
        groups: Sequence[KVGroup],
        cache: Any,
        device: Device,
        policy: ShapePolicy,
        *,
        padded: bool = False,
        slots: int = 0,
    ) -> None:
        self.model, self.backend, self.groups, self.cache = model, backend, groups, cache
        self.device, self.policy, self._padded = device, policy, padded
        self.latest = torch.zeros(slots, dtype=torch.int64, device=device.torch_device)
        """On the device, the token sampled last for each slot: where a step that is launched ahead goes on."""
        self.axes = model.axes
        self._ready: dict[Shape, Buffers] = {}
        self._warm_kinds: set[str] = set()
        self._missed: set[Shape] = set()
        self._rehearsed = False

    def run(
        self, kind: str, batch: Batch, places: Callable[[Batch], Int64s], media: Gather = no_media
    ) -> ForwardResult:
        """Compute the batch, and the states of the tokens that ``places`` names in its padded form.

        ``media`` gives the embeddings in it; a step that has any does not run compiled.
        """
        if not self._ready and not self._padded:
            return self._run_uncompiled(batch, places(batch), media(batch), None)
        shape = self.policy.pad(self.policy.measure(kind, batch.layout.query, batch.layout.context))
        buffers = self._ready.get(shape)
        if buffers is not None or self._padded:
            batch = pad_batch(batch, shape, padded=self._padded, cross_blocks=self._cross_blocks(shape))
        wanted, embeddings = places(batch), media(batch)
        if buffers is not None and len(wanted) <= shape.rows and embeddings is None:
            self._fill(buffers, batch, np.pad(wanted, (0, shape.rows - len(wanted))))
            return ForwardResult(buffers.run(), len(wanted), buffers.step, unwarmed=False)
        return self._run_uncompiled(batch, wanted, embeddings, shape)

    def _run_uncompiled(
        self, batch: Batch, wanted: Int64s, embeddings: Embeddings | None, shape: Shape | None
    ) -> ForwardResult:
        """``shape`` is the one in which the step could have been compiled, None where there is none."""
        step = self._make_step(batch, wanted)
        if embeddings is not None:
            step = replace(step, media=embeddings)
        unwarmed = shape is not None and self._note_miss(shape)
        return ForwardResult(nn_model.run(self.model, step), len(wanted), step, unwarmed=unwarmed)

    def compute(self, batch: Batch, wanted: Int64s) -> Tensor:
        """The batch without padding, through to the logits of the tokens ``wanted``."""
        step = self._make_step(batch, wanted)
        return self.model.head(nn_model.run(self.model, step), step)

    def warm_up(self, report: Callable[[int, int], None], *, eager: bool) -> None:
        """Compile and run every shape the platform wants ready, on the null page, through to the logits."""
        expected = self.policy.expected()
        left = find_uncapturable(self.model)
        if left and expected and not eager:
            log.warning("steps are not captured: %s runs by its reference, which can't be", ", ".join(sorted(left)))
            eager = True
        for done, shape in enumerate(self.policy.warmup(), start=1):
            buffers = self._ready[shape] = self.prepare(shape, eager=eager)
            self.model.head(buffers.run(), buffers.step)
            self._warm_kinds.add(shape.kind)
            report(done, max(done, expected))
        self.device.synchronize()

    def prepare(self, shape: Shape, *, eager: bool) -> Buffers:
        """The buffers of a shape and its compiled step, which has run."""
        batch = self._dummy(shape)
        buffers = Buffers(self.model, self._make_step(batch, np.zeros(shape.rows, np.int64)))
        fillings = () if eager else self._fillings(buffers, batch, shape)
        buffers.run = self.device.compile(buffers.run, shape, eager=eager, fillings=fillings)
        return buffers

    def _fillings(self, buffers: Buffers, dummy: Batch, shape: Shape) -> tuple[Fill, ...]:
        """Steps of other lengths, tokens and blocks to compare a graph's replay by: rehearsed ones, then the dummy."""
        if not self.device.captures or self._padded or shape.query > 1:
            return ()
        limits, places = self.policy.limits, np.arange(shape.rows)
        rehearsal = Rehearsal(self.groups, limits, self.model.vocab_size, self.axes)
        if rehearsal.prompt_blocks and not self._rehearsed:
            self._rehearsed = True
            nn_model.run(self.model, self._make_step(rehearsal.prompt(), np.zeros(1, np.int64)))
        batches = (rehearsal.decoding(dummy, shape), dummy)
        return tuple(partial(self._fill, buffers, batch, places) for batch in batches)

    def _dummy(self, shape: Shape) -> Batch:
        size, blocks = self.policy.limits.block_size, self._cross_blocks(shape)
        return dummy_batch(shape, self.groups, size, padded=self._padded, axes=self.axes, cross_blocks=blocks)

    def _cross_blocks(self, shape: Shape) -> int:
        """What the block lists of media items are padded to in a shape, as the policy counts."""
        source = next((group.cross_len for group in self.groups if group.cross_len is not None), None)
        if source is None:
            return 0
        single = np.ones(shape.rows, np.int32)
        return self.policy.measure(shape.kind, single, source * single).blocks

    def write_item(self, item: Tensor, tables: tuple[TableRows, ...]) -> None:
        """Put what cross layers keep of an item's embeddings [count, hidden] into the blocks ``tables`` [1, blocks]."""
        count = np.array([len(item)], np.int32)
        layout = BatchLayout(count, count, tables, span=len(item) if self._padded else 0)
        plans = (self.backend.plan(layout, group) if group.kind == "cross" else None for group in self.groups)
        nothing = torch.empty(0, dtype=torch.int64)
        step = Step(nothing, nothing[None], self.backend, tuple(plans), self.cache, nothing)
        nn_model.write_item(self.model, item, step)

    def _note_miss(self, shape: Shape) -> bool:
        """Whether steps of this kind are expected to be warmed up; logs each missing shape once."""
        if shape.kind not in self._warm_kinds:
            return False
        if shape not in self._missed:
            self._missed.add(shape)
            log.warning("Configuration: %s was not warmed-up!", self.policy.describe(shape))
        return True

    def _make_step(self, batch: Batch, wanted: Int64s) -> Step:
        step = Step(
            ids=self._put(batch.ids),
            positions=self._put(batch.positions),
            backend=self.backend,
            attention=tuple(self.backend.plan(batch.layout_of(group), group) for group in self.groups),
            cache=self.cache,
            logits_rows=self._put(wanted),
        )
        self._await(step.ids, batch)
        return step

    def _fill(self, buffers: Buffers, batch: Batch, wanted: Int64s) -> None:
        """Write a batch of the buffers' shape into them."""
        step = buffers.step
        for tensor, values in ((step.ids, batch.ids), (step.positions, batch.positions), (step.logits_rows, wanted)):
            tensor.copy_(self._on_host(values), non_blocking=True)
        self._await(step.ids, batch)
        plans = zip(self.groups, step.attention, strict=True)
        attention = tuple(self.backend.plan(batch.layout_of(group), group, plan) for group, plan in plans)
        buffers.step = replace(step, attention=attention)

    def _await(self, ids: Tensor, batch: Batch) -> None:
        """Take the ids that the host does not know yet from the previous step."""
        if len(batch.unknown):
            ids[self._put(batch.unknown)] = self.latest[self._put(batch.awaited)]

    def _put(self, values: Int64s) -> Tensor:
        return self._on_host(values).to(self.device.torch_device, non_blocking=True)

    def _on_host(self, values: Int64s) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor.pin_memory() if self.device.pinned else tensor
