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

from lsv.kv.spec import KVGroup
from lsv_runtime.attention import AttentionBackend, BatchLayout
from lsv_runtime.attention.chunks import cut_chunks
from lsv_runtime.attention.spans import ItemLayout
from lsv_runtime.attention.state_plan import plan_states, view_states
from lsv_runtime.attention.tables import TableRows
from lsv_runtime.devices.device import Device, Fill, StepFn
from lsv_runtime.devices.shapes import Shape, ShapePolicy
from lsv_runtime.devices.staging import send
from lsv_runtime.nn import model as nn_model
from lsv_runtime.nn.model import Model
from lsv_runtime.nn.step import Embeddings, Items, Step, Taps
from lsv_runtime.ops import find_uncapturable
from lsv_runtime.pipeline.link import Links
from lsv_runtime.worker.experts.shared import SharedExperts
from lsv_runtime.worker.inputs import Batch, dummy_batch, pad_batch
from lsv_runtime.worker.rehearsal import Rehearsal
from lsv_runtime.worker.sampling.variants import steps_of_all_sizes
from lsv_runtime.worker.transfer import awaited, overwrite_batch, sampled, send_adapters, send_batch

log = logging.getLogger(__name__)

Int64s = npt.NDArray[np.int64]

_DECODE = "decode"

_UNCACHED = (KVGroup(0, "full", (), 0),)
"""What the attention of a model without a cache is planned as: its layers share the rows, and there are no blocks."""

Gather = Callable[[Batch], Embeddings | None]
"""The embeddings of media in a batch."""


def no_media(batch: Batch) -> None:
    """The embeddings in a batch of text."""


class Buffers:
    """The tensors of a step that runs repeatedly in one shape, and the compiled step that reads them.

    ``run`` gives the normed hidden states of the rows; where each has one token, which all go through the head, their
    logits as well.
    """

    def __init__(self, model: Model, step: Step, *, single: bool) -> None:
        self.step = step
        self.logits: Tensor | None = None
        """Where a captured step leaves its logits."""
        self.compiled = False
        self.run: StepFn = lambda: nn_model.run(model, self.step)
        if single and model.ends:
            self.run = lambda: nn_model.run_to_logits(model, self.step, self.logits)


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """What a pass through the layers leaves behind."""

    hidden: Tensor
    """Normed hidden states [rows, hidden]; rows after the first ``wanted`` fill the shape up. Of a model without its
    last layers, what these are given [T, hidden]."""
    logits: Tensor | None
    """Those of ``hidden``, where the head is part of the compiled step. The next step overwrites them."""
    wanted: int
    """How many tokens' states were asked for."""
    step: Step
    """The step as it ran."""
    unwarmed: bool
    """Whether the step should have been compiled during warm-up and was not."""
    tapped: Tensor | None = None
    """[T, taps * hidden]: states between layers, of all tokens; None where nobody reads them."""
    sound: Tensor | None = None
    """bool [T]: which tokens' states are finite; None where the batch is not checked."""


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
        links: Links | None = None,
        taps: tuple[int, ...] = (),
        shared: SharedExperts | None = None,
    ) -> None:
        """``taps`` are the states that are read of every step, see ``lsv_runtime.nn.step.Taps``; ``shared`` the experts
        that replicas share, with which each step is begun once shapes are warmed up.
        """
        self.model, self.backend, self.groups = model, backend, groups
        self.cache = cache if groups else None
        self.device, self.policy, self._padded = device, policy, padded
        self.latest = torch.zeros(slots, dtype=torch.int64, device=device.torch_device)
        """On the device, the token sampled last for each slot: where a step that is launched ahead goes on."""
        self.axes, self.pairs, self.mutual = model.axes, model.pairs, model.mutual
        self._checks = bool(groups) and model.ends  # without a cache no other request can read what a step computed
        self._states = view_states(model.state_layers(), backend, cache)
        self._links, self._taps, self._shared = links, taps, shared
        self._tapped: Tensor | None = None
        self._ready: dict[Shape, Buffers] = {}
        self._logits: Tensor | None = None
        self._warm_kinds: set[str] = set()
        self._missed: set[Shape] = set()
        self._rehearsed = False

    def run(
        self, kind: str, batch: Batch, places: Callable[[Batch], Int64s], media: Gather = no_media
    ) -> ForwardResult:
        """Compute the batch, and the states of the tokens that ``places`` names in its padded form; between stages,
        take its states from the one before or hand them on.

        ``media`` gives the embeddings in it; a step that has any does not run compiled, nor does one with adapters, or
        with items whose tokens see one another.
        """
        shape, buffers = self._choose_shape(kind, batch)
        if self._padded and shape is not None:
            batch = self._pad(batch, shape)
        wanted, embeddings = places(batch), media(batch)
        if shape is None or buffers is None:
            return self._run_uncompiled(batch, wanted, embeddings, shape)
        special = embeddings is not None or batch.adapters is not None or batch.items is not None
        if len(wanted) > shape.rows or special:
            return self._run_uncompiled(batch, wanted, embeddings, None)
        self._fill(buffers, batch if self._padded else self._pad(batch, shape), wanted)
        if self._links is not None:
            self._links.receive(buffers.step.received, len(batch.ids))
        ran = self._run_compiled(buffers, shape, len(wanted), checked=batch.checked)
        if self._links is not None:
            self._links.send(ran.hidden, len(batch.ids))
        return ran

    def _choose_shape(self, kind: str, batch: Batch) -> tuple[Shape | None, Buffers | None]:
        """What the batch is padded to, None where nothing is, and its compiled step, if there is one.

        Where replicas share experts they begin the step here. Compiled ones are all of the same size: that of the
        largest, to which others are widened, or they run op by op.
        """
        tokens = len(batch.ids)
        if not self._ready and not self._padded:
            if self._shared is not None:
                self._shared.begin(tokens, tokens, ready=False)
            return None, None
        measured = self.policy.measure(kind, batch.layout.query, batch.layout.context)
        shape = self.policy.pad(measured)
        buffers = self._ready.get(shape)
        if self._shared is None:
            return shape, buffers
        size = tokens if buffers is None and not self._padded else shape.size
        even = self._shared.begin(size if self._padded else tokens, size, ready=buffers is not None)
        if shape.size == even:
            return shape, buffers
        wider = self.policy.widen(measured, even)
        return (wider, self._ready[wider]) if wider.size == even and wider in self._ready else (shape, None)

    def _run_compiled(self, buffers: Buffers, shape: Shape, wanted: int, *, checked: bool = False) -> ForwardResult:
        """The step in the buffers. Padding rows of prompts are left out of what the head and the sampler are given."""
        if not self.model.ends:
            return ForwardResult(buffers.run(), None, wanted, buffers.step, unwarmed=False)
        hidden, logits = buffers.run() if _is_single(shape) else (buffers.run(), None)
        kept = hidden[:wanted] if shape.tokens else hidden
        read = (_tapped(buffers.step), buffers.step.sound if checked else None)
        tapped, sound = (None if one is None else one.clone() for one in read)  # the next step overwrites them
        return ForwardResult(kept, logits, wanted, buffers.step, unwarmed=False, tapped=tapped, sound=sound)

    def head(self, ran: ForwardResult, states: Tensor, first: int = 0) -> Tensor:
        """The logits [rows, vocabulary] of the step's ``states`` [rows, hidden], or of some from ``first`` on."""
        if ran.logits is not None and states is ran.hidden:
            return ran.logits
        step = ran.step
        if step.adapters is not None:
            step = replace(step, logits_rows=step.logits_rows[first : first + len(states)])
        return self.model.head(states, step)

    def _run_uncompiled(
        self, batch: Batch, wanted: Int64s, embeddings: Embeddings | None, shape: Shape | None
    ) -> ForwardResult:
        """``shape`` is the one in which the step could have been compiled, None where there is none."""
        step = self._make_step(batch, wanted)
        if embeddings is not None:
            step = replace(step, media=embeddings)
        unwarmed = shape is not None and self._note_miss(shape)
        if self._links is not None:
            self._links.receive(step.received, len(batch.ids))
        hidden = nn_model.run(self.model, step)
        ran = ForwardResult(hidden, None, len(wanted), step, unwarmed, tapped=_tapped(step), sound=step.sound)
        if self._links is not None:
            self._links.send(ran.hidden, len(batch.ids))
        return ran

    def compute(self, batch: Batch, wanted: Int64s) -> Tensor:
        """The batch without padding, through to the logits of the tokens ``wanted`` if the model has a head."""
        step = self._make_step(batch, wanted)
        hidden = nn_model.run(self.model, step)
        return self.model.head(hidden, step) if self.model.ends else hidden

    def warm_up(
        self,
        report: Callable[[int, int], None],
        *,
        eager: bool,
        sample: Callable[[Tensor], None] = lambda logits: None,
    ) -> None:
        """Compile and run every shape the platform wants ready, on the null page, through to the logits.

        Where kernels are compiled when they are launched first, steps of other sizes follow op by op, and ``sample``
        is to choose from logits in all ways.
        """
        expected = self.policy.expected()
        left = find_uncapturable(self.model)
        if left and expected and not eager:
            log.warning("steps are not captured: %s runs by its reference, which can't be", ", ".join(sorted(left)))
            eager = True
        if not eager and self.model.adapters is None:  # which slots are in use changes what layers do
            self.device.compile_parts(self.model)
        for done, shape in enumerate(self.policy.warmup(), start=1):
            buffers = self.prepare(shape, eager=eager)
            ran = self._run_compiled(buffers, shape, shape.rows)
            logits = self.head(ran, ran.hidden) if self.model.ends else None
            if logits is not None and self._padded and self.device.compiles_late and _is_single(shape):
                sample(logits)
            if buffers.compiled or not shape.tokens:  # op by op, tokens that fill a step up only take time
                self._ready[shape] = buffers
                self._warm_kinds.add(shape.kind)
            report(done, max(done, expected))
        if self.device.compiles_late and not self._padded:
            self._run_all_sizes(sample)
        self.device.synchronize()

    def _run_all_sizes(self, sample: Callable[[Tensor], None]) -> None:
        """Steps op by op, and ``sample`` from the logits of one row and of as many as there may be, or almost."""
        limits = self.policy.limits
        for batch in steps_of_all_sizes(self.groups, limits, self.axes):
            logits = self.compute(batch, batch.last)
            if self.model.ends and (batch.rows == 1 or 2 * batch.rows > limits.max_rows):
                sample(logits)

    def prepare(self, shape: Shape, *, eager: bool) -> Buffers:
        """The buffers of a shape and its compiled step, which has run."""
        batch, wanted = self._dummy(shape), np.zeros(shape.rows, np.int64)
        step, fillings = self._make_step(batch, wanted), tuple[Fill, ...]()
        buffers = Buffers(self.model, step, single=_is_single(shape))
        if self.device.captures and not eager:
            buffers.logits = self._room(step) if _is_single(shape) and self.model.ends else None
            if step.taps is not None:
                step.taps.states = self._room_for_taps(step, step.taps)
            fillings = self._fillings(buffers, batch, shape)
        run = self.device.compile(buffers.run, shape, eager=eager, fillings=fillings)
        buffers.run, buffers.compiled = run, run is not buffers.run
        return buffers

    def _room(self, step: Step) -> Tensor:
        """For the logits of a captured step; all share it, or each would keep its own."""
        rows = len(step.logits_rows)
        if self._logits is None or len(self._logits) < rows:
            self._logits = self.model.head(nn_model.run(self.model, step), step)
        return self._logits[:rows]

    def _room_for_taps(self, step: Step, taps: Taps) -> Tensor:
        """For what a captured step leaves of its states; all share it, as they do that for logits."""
        if self._tapped is None or len(self._tapped) < len(step.ids):
            nn_model.run(self.model, step)
            self._tapped = taps.states
        assert self._tapped is not None, "the step has taps"
        return self._tapped[: len(step.ids)]

    def _fillings(self, buffers: Buffers, dummy: Batch, shape: Shape) -> tuple[Fill, ...]:
        """Steps of other lengths, tokens and blocks to compare a graph's replay by: a rehearsed one, then the dummy."""
        if self._padded or (shape.query > 1 and not shape.tokens):
            return ()
        limits = self.policy.limits
        rehearsal = Rehearsal(self.groups, limits, self.model.vocab_size, self.axes)
        if rehearsal.prompt_blocks and not self._rehearsed:
            self._rehearsed = True
            nn_model.run(self.model, self._make_step(rehearsal.prompt(), np.zeros(1, np.int64)))
        batches = (rehearsal.step(dummy, shape), dummy)
        return tuple(partial(self._fill, buffers, batch, batch.last) for batch in batches)

    def _pad(self, batch: Batch, shape: Shape) -> Batch:
        return pad_batch(batch, shape, padded=self._padded, cross_blocks=self._cross_blocks(shape))

    def _dummy(self, shape: Shape) -> Batch:
        size, blocks = self.policy.limits.block_size, self._cross_blocks(shape)
        dummy = dummy_batch(shape, self.groups, size, padded=self._padded, axes=self.axes, cross_blocks=blocks)
        return dummy if _is_single(shape) else replace(dummy, checked=True)

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
        """Whether steps like this are meant to be warmed up; logs each missing shape once."""
        if shape in self._ready or shape.kind not in self._warm_kinds or not self.policy.prepares(shape):
            return False
        if shape not in self._missed:
            self._missed.add(shape)
            log.warning("Configuration: %s was not warmed-up!", self.policy.describe(shape))
        return True

    def _make_step(self, batch: Batch, wanted: Int64s) -> Step:
        ids, positions, logits_rows = send_batch(batch, wanted, self.device.torch_device)
        step = Step(
            ids=ids,
            positions=positions,
            backend=self.backend,
            attention=tuple(self._plan(batch, group) for group in self.groups or _UNCACHED),
            cache=self.cache,
            logits_rows=logits_rows,
            received=None if self.model.receives is None else self._room_for_states(len(ids)),
            types=None if batch.types is None else send(batch.types, self.device.torch_device),
            adapters=None if batch.adapters is None else send_adapters(batch.adapters, self.device.torch_device),
            taps=Taps(self._taps) if self._taps else None,
            items=None if batch.items is None else self._plan_items(batch.items),
            sound=torch.ones_like(ids, dtype=torch.bool) if batch.checked and self._checks else None,
        )
        self._await(step, batch)
        return step

    def _plan_items(self, items: ItemLayout) -> Items:
        plans = tuple(self.backend.plan(items.layout, group) for group in self.groups)
        return Items(send(items.places, self.device.torch_device), plans)

    def _room_for_states(self, tokens: int) -> Tensor:
        """Where the states of a step's tokens are received."""
        assert self.model.receives is not None, "the model embeds tokens"
        width, dtype = self.model.receives
        return torch.zeros(tokens, width, dtype=dtype, device=self.device.torch_device)

    def _plan(self, batch: Batch, group: KVGroup, into: Any | None = None) -> Any:
        """What the layers of a group share in a step; an earlier plan of attention is overwritten."""
        layout, size = batch.layout_of(group), self.policy.limits.block_size
        if group.kind != "state":
            return self.backend.plan(cut_chunks(layout, group, size), group, into)
        device, drafts = self.device.torch_device, layout.draft_pages.get(group.index, {})
        return plan_states(layout, layout.tables[group.index], size, device, self._states, drafts)

    def _fill(self, buffers: Buffers, batch: Batch, wanted: Int64s) -> None:
        """Write a batch of the buffers' shape into them, and which tokens are wanted: no more than it has rows."""
        step = buffers.step
        overwrite_batch(step, batch, np.pad(wanted, (0, len(step.logits_rows) - len(wanted))))
        self._await(step, batch)
        plans = zip(self.groups, step.attention, strict=True)
        attention = tuple(self._plan(batch, group, plan) for group, plan in plans)
        buffers.step = replace(step, attention=attention)

    def _await(self, step: Step, batch: Batch) -> None:
        """Take the ids that the host does not know yet from the previous step."""
        if len(batch.unknown):
            unknown, slots = awaited(step, batch)
            step.ids[unknown] = self.latest[slots]

    def remember(self, step: Step, tokens: Tensor) -> None:
        """Keep the tokens int64 [rows] that a step has sampled for ``Batch.sampled``: the next goes on from them."""
        # a row that failed goes on from token 0; its results are discarded
        self.latest[sampled(step, len(tokens))] = tokens.clamp(min=0)


def _tapped(step: Step) -> Tensor | None:
    return None if step.taps is None else step.taps.states


def _is_single(shape: Shape) -> bool:
    """Whether every row has one token, and wants what follows it."""
    return shape.kind == _DECODE and shape.query == 1
