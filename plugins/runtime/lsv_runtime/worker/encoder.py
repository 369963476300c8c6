"""The worker's embeddings of images, sounds and videos: made when a plan says so, kept until a plan forgets them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lsv.config import EngineConfig
from lsv.media.shared import read_data
from lsv.request.media import EMBEDDINGS, MEDIA_REFUSED, Array, Media
from lsv.scheduler.plan import Encode, Rows, StepPlan
from lsv_base.errors import BadRequest
from lsv_runtime.devices.device import Device
from lsv_runtime.nn.dtypes import model_dtype
from lsv_runtime.nn.model import Encoder, Model
from lsv_runtime.nn.step import Embeddings
from lsv_runtime.pipeline.link import Links
from lsv_runtime.worker.inputs import Batch
from lsv_runtime.worker.slots import Slot

log = logging.getLogger(__name__)


Write = Callable[[Tensor, int], None]
"""Caches what cross layers keep of an item [count, hidden] in the blocks of a slot."""


class MediaEncoder:
    """Carries out what plans say about media. An item that can't be encoded fails the requests that need it before a
    plan forgets it; those that come later have it encoded anew.
    """

    def __init__(self, encoder: Encoder | None, device: torch.device, write: Write | None = None) -> None:
        self._encoder, self._device, self._write = encoder, device, write
        self._embeddings: dict[bytes, Tensor] = {}
        self._states: dict[bytes, Any] = {}
        self.faults: dict[bytes, str] = {}
        """Why items failed that no plan has forgotten, by hash."""

    @property
    def parts(self) -> int:
        """The parts that an item is encoded in; 0 without an encoder."""
        return 0 if self._encoder is None else self._encoder.parts

    def apply(self, plan: StepPlan, slots: Mapping[int, Slot]) -> dict[bytes, str]:
        """Forget and encode as the plan says; returns why items could not be encoded, by hash.

        Slots that an item was to be encoded for, or whose rows need its embeddings, fail with it.
        """
        for hash in plan.forget:
            for held in (self._embeddings, self._states, self.faults):
                held.pop(hash, None)
        failed: dict[bytes, str] = {}
        for piece in plan.encode:
            slot = slots[piece.slot]
            media = slot.begin.media[piece.place]
            if media.hash not in self.faults:
                try:
                    self._advance(media, piece)
                    continue
                except BadRequest as refusal:
                    why = f"{MEDIA_REFUSED}{media.modality}: {refusal.message}"
                except Exception as cause:  # odd inputs may make an encoder fail in any way; other requests go on
                    log.exception("an item of media could not be encoded")
                    why = f"the {media.modality} could not be encoded: {type(cause).__name__}: {cause}"
                failed[media.hash] = self.faults[media.hash] = why
            slot.fail(self.faults[media.hash])
        if self.faults:
            self._fail_rows(plan.rows, slots)
        return failed

    def _fail_rows(self, rows: Rows, slots: Mapping[int, Slot]) -> None:
        for number, start, count in zip(rows.slot, rows.start, rows.count, strict=True):
            slot = slots[number]
            for media in slot.begin.media:
                needed = not media.cross and media.start < start + count and start < media.stop
                if needed and media.hash in self.faults:
                    slot.fail(self.faults[media.hash])

    def gather(self, batch: Batch, slots: Sequence[Slot]) -> Embeddings | None:
        """The embeddings for tokens of the batch, whose rows are those of ``slots``."""
        places: list[Tensor] = []
        rows: list[Tensor] = []
        for row, slot in enumerate(slots):
            last, stop = int(batch.last[row]), int(batch.layout.context[row])
            start = stop - int(batch.layout.query[row])
            for media in slot.begin.media:
                first, end = max(media.start, start), min(media.stop, stop)
                if first < end and not media.cross and slot.fault is None:
                    rows.append(self._embeddings[media.hash][first - media.start : end - media.start])
                    places.append(torch.arange(first, end) + (last - stop + 1))
        if not rows:
            return None
        deeper = 0 if self._encoder is None else self._encoder.deeper
        return Embeddings.cut(torch.cat(places).to(self._device), torch.cat(rows), deeper)

    def _advance(self, media: Media, piece: Encode) -> None:
        assert self._encoder is not None, "a plan encodes for a model without an encoder"
        if piece.first < piece.last:
            self._compute(self._encoder, media, piece)
        if media.cross and piece.last == self._encoder.parts:
            assert self._write is not None, "an item to attend to for a model without cross layers"
            self._write(self._embeddings[media.hash], piece.slot)

    def _compute(self, encoder: Encoder, media: Media, piece: Encode) -> None:
        given = EMBEDDINGS in media.inputs
        if piece.first == 0:
            inputs = {name: self._put(array) for name, array in media.inputs.items()}
            self._states[media.hash] = inputs[EMBEDDINGS] if given else encoder.begin(inputs)
        state = self._states.pop(media.hash)
        for part in range(piece.first, piece.last):
            state = state if given else encoder.advance(state, part)
        if piece.last < encoder.parts:
            self._states[media.hash] = state
        elif len(state) != media.count:
            raise ValueError(f"{len(state)} embeddings for the {media.count} places of the prompt")
        else:
            self._embeddings[media.hash] = state

    def _put(self, array: Array) -> Tensor:
        dtype: torch.dtype = getattr(torch, array.dtype)
        tensor = torch.frombuffer(read_data(array), dtype=dtype) if array.size else torch.empty(0, dtype=dtype)
        return tensor.view(array.shape).to(self._device, non_blocking=True)


class StagedEncoder(MediaEncoder):
    """That of one of several stages. Cross layers of all of them keep something of an item: the first one encodes it,
    and each hands it on. One that can't be encoded is handed on as zeros; its requests fail.
    """

    def __init__(self, model: Model, device: torch.device, write: Write, links: Links, dtype: torch.dtype) -> None:
        super().__init__(model.encoder, device, write)
        self._begins, self._links, self._dtype = model.receives is None, links, dtype

    def apply(self, plan: StepPlan, slots: Mapping[int, Slot]) -> dict[bytes, str]:
        failed = super().apply(plan, slots) if self._begins else {}
        for piece in plan.encode:
            media = slots[piece.slot].begin.media[piece.place]
            if media.cross and piece.last == self.parts:
                self._pass_on(media, piece.slot)
        return failed

    def _pass_on(self, media: Media, slot: int) -> None:
        assert self._encoder is not None, "a plan encodes for a model without an encoder"
        assert self._write is not None
        item = torch.zeros(media.count, self._encoder.width, dtype=self._dtype, device=self._device)
        if media.hash in self._embeddings:
            item.copy_(self._embeddings[media.hash])
        self._links.receive(item, media.count)
        if not self._begins:
            self._write(item, slot)
        self._links.send(item, media.count)


def make_media_encoder(
    model: Model, config: EngineConfig, device: Device, write: Write, links: Links | None
) -> MediaEncoder:
    """What carries out plans for a model; ``links`` are those to other stages."""
    if links is None or model.encoder is None:
        return MediaEncoder(model.encoder, device.torch_device, write)
    return StagedEncoder(model, device.torch_device, write, links, model_dtype(config.dtype))
