"""Conformance of a model that takes media: with them in its prompts its logits equal the reference's at every position,
however the work is cut into steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lsv.config import EngineConfig
from lsv.media.shared import read_data
from lsv.plugins.catalog import Catalog
from lsv.request.media import Array, Media, Span, cross_item, spans_of
from lsv.request.prompt import Prompt
from lsv_runtime.attention import AttentionBackend
from lsv_runtime.attention.spans import SeenRow, find_items
from lsv_runtime.nn.model import Model
from lsv_runtime.nn.step import Embeddings, Items
from lsv_runtime.worker.load.declared import Declared
from lsv_runtime.worker.slots import distances
from lsv_testing.model import (
    SCHEDULES,
    Comparison,
    Rows,
    Sequences,
    Tokens,
    check,
    compare_decoding,
    compare_logits,
    load,
    run_schedule,
)

Schedule = Callable[[Mapping[int, Tokens]], Iterator[Rows]]


class ShownSequences(Sequences):
    """Sequences whose prompts show media; ``shown`` has the prompts by sequence."""

    def __init__(
        self, declared: Declared, shown: Mapping[int, Prompt], backend: AttentionBackend | None = None
    ) -> None:
        super().__init__(declared, backend)
        self.shown = shown
        media = {media.hash: media for placed in shown.values() for media in placed.media}
        self.seen = {hash: encode(declared.model.encoder, media.inputs) for hash, media in media.items()}
        for sequence, placed in shown.items():
            item = cross_item(placed.media)
            if item is not None:
                self.attend_to(sequence, self.seen[item.hash])

    def positions(self, sequence: int, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        placed = self.shown[sequence]
        if self.declared.model.axes == 2:
            item, places = cross_item(placed.media), np.arange(start, stop, dtype=np.int32)
            found = np.stack((places, distances(places, None if item is None else item.start)))
            return found.astype(np.int64)
        if placed.positions is None:
            return super().positions(sequence, start, stop)
        axes, length = placed.positions.axes, len(placed.ids)
        prompt = np.frombuffer(placed.positions.data, np.int32).reshape(axes, length)[:, start:stop]
        behind = np.arange(max(start, length), max(stop, length)) + placed.positions.offset
        return np.concatenate((prompt, np.tile(behind, (axes, 1))), axis=1).astype(np.int64)

    def embeddings(self, rows: Rows) -> Embeddings | None:
        places, found, offset = [], [], 0
        for sequence, count in rows:
            start = self.computed[sequence]
            for media in self.shown[sequence].media:
                if media.cross:
                    continue
                first, stop = max(media.start, start), min(media.stop, start + count)
                if first < stop:
                    places.append(torch.arange(first, stop) - start + offset)
                    found.append(self.seen[media.hash][first - media.start : stop - media.start])
            offset += count
        encoder = self.declared.model.encoder
        if not places or encoder is None:
            return None
        return Embeddings.cut(torch.cat(places), torch.cat(found), encoder.deeper)

    def seen_items(self, rows: Rows) -> Items | None:
        if not self.declared.model.mutual:
            return None
        seen, begin = [], 0
        for sequence, count in rows:
            stop = self.computed[sequence]
            seen.append(SeenRow(begin, stop - count, stop, mutual_spans(self.shown[sequence], self.declared.model)))
            begin += count

        def tables(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> Any:
            picked = [rows[number][0] for number in numbers.tolist()]
            return tuple(self._table(group, picked) for group in self.declared.groups)

        found = find_items(seen, tables)
        if found is None:
            return None
        plans = tuple(self.backend.plan(found.layout, group) for group in self.declared.groups)
        return Items(torch.from_numpy(found.places), plans)


def mutual_spans(prompt: Prompt, model: Model) -> Sequence[Span]:
    return ((0, len(prompt.ids)),) if model.mutual == "prompts" else spans_of(prompt.media)


def whole_items(schedule: Schedule, shown: Mapping[int, Prompt], model: Model) -> Schedule:
    """The schedule with its steps made longer where they would cut tokens that see one another."""

    def make(prompts: Mapping[int, Tokens]) -> Iterator[Rows]:
        done, aimed = dict.fromkeys(prompts, 0), dict.fromkeys(prompts, 0)
        for rows in schedule(prompts):
            longer = []
            for sequence, count in rows:
                aimed[sequence] += count
                spans = mutual_spans(shown[sequence], model)
                cut = (stop for start, stop in spans if start < aimed[sequence] < stop)
                stop = next(cut, aimed[sequence])
                if stop > done[sequence]:
                    longer.append((sequence, stop - done[sequence]))
                    done[sequence] = stop
            if longer:
                yield longer

    return make


@torch.inference_mode()
def encode(encoder: Any, inputs: Mapping[str, Array]) -> torch.Tensor:
    """All parts of an encoder over one item: its embeddings [count, hidden]."""
    state = encoder.begin(
        {
            name: torch.frombuffer(read_data(array), dtype=getattr(torch, array.dtype)).view(array.shape)
            for name, array in inputs.items()
        }
    )
    for part in range(encoder.parts):
        state = encoder.advance(state, part)
    return state  # type: ignore[no-any-return]


def seen_pixels(media: Media) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Squares as a tower sees them, float32 [squares, channels, size, size]: bytes of colours by their levels."""
    arrays = (media.inputs[name] for name in ("levels", "pixel_values"))
    levels, pixels = (np.frombuffer(read_data(array), array.dtype).reshape(array.shape) for array in arrays)
    factor, offset = levels[:, :, None, None]
    found: np.ndarray[Any, np.dtype[np.float32]] = pixels * factor - offset
    return found


def check_shown(
    config: EngineConfig,
    catalog: Catalog,
    shown: Mapping[int, Prompt],
    reference: Callable[[int, Tokens], torch.Tensor],
    backend: AttentionBackend | None = None,
    *,
    tolerance: float = 1e-4,
) -> list[Comparison]:
    """Run a float32 checkpoint under every schedule, and greedily. ``reference`` gives the logits [length, vocab] of a
    sequence's prompt with the tokens that came after it; fails where they differ by more than ``tolerance``.
    """
    declared = load(config, catalog)
    prompts = {sequence: placed.ids for sequence, placed in shown.items()}
    expected = {sequence: reference(sequence, ids) for sequence, ids in prompts.items()}
    found = []
    for name, schedule in SCHEDULES.items():
        steps = whole_items(schedule, shown, declared.model) if declared.model.mutual else schedule
        logits = run_schedule(ShownSequences(declared, shown, backend), steps, prompts)
        found.append(compare_logits(name, logits, expected))
    found.append(compare_decoding(ShownSequences(declared, shown, backend), reference, prompts))
    return check(found, tolerance)
