"""Which shapes get an HPU graph: as many as the memory kept for graphs allows, the most useful first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lsv.platform import Shape
from lsv_hpu.memory import written
from lsv_hpu.settings import Order


def in_order(shapes: Sequence[Shape], order: Order) -> list[Shape]:
    """``min_tokens``: ascending by size, larger batches first; ``max_bs``: the largest batch first, then by length."""
    if order == "max_bs":
        return sorted(shapes, key=lambda shape: (-shape.rows, shape.query, shape.blocks))
    return sorted(shapes, key=lambda shape: (size(shape), -shape.rows, shape.blocks))


def size(shape: Shape) -> int:
    """Batch by length: tokens of prompts, or rows by blocks of decoding rows."""
    return shape.rows * (shape.query if shape.query > 1 else shape.blocks)


class Stage:
    """The graphs of prompts, or of decoding rows. ``used`` counts their bytes."""

    def __init__(self, name: str, shapes: Sequence[Shape], order: Order) -> None:
        self.name, self.total = name, len(shapes)
        self.pending = in_order(shapes, order)
        self.captured: list[Shape] = []
        self.used = 0

    def fill(self, room: int, free: Callable[[], int]) -> Iterator[Shape]:
        """Shapes to capture, one after the other, as long as ``room`` bytes seem to suffice for the next.

        What one takes is judged by those before it, so the first is always tried and ``room`` may be exceeded.
        """
        left, self.pending = self.pending, []
        for shape in left:
            if room <= 0 or self._estimate(shape) > room:
                self.pending.append(shape)
                continue
            before = free()
            yield shape
            taken = max(0, before - free())
            self.captured.append(shape)
            self.used += taken
            room -= taken

    def report(self) -> str:
        share = 100 * len(self.captured) / self.total if self.total else 100.0
        buckets = sorted(self.captured, key=lambda shape: (shape.rows, shape.query, shape.blocks))
        return (
            f"{self.name} captured:{len(self.captured)} ({share:.1f}%) used_mem:{written(self.used)} "
            f"buckets:{[bucket(shape) for shape in buckets]}"
        )

    def _estimate(self, shape: Shape) -> float:
        done = sum(size(shape) for shape in self.captured)
        return self.used * size(shape) / done if done else 0.0


def capture(
    prompts: Stage, decodes: Stage, pool: int, ratio: float, free: Callable[[], int]
) -> Iterator[tuple[Stage, Shape]]:
    """Shapes to capture within ``pool`` bytes, with their stage: prompts in their ``ratio`` of it, then decoding rows
    in the rest, then in what is left whichever is incomplete. ``free`` asks the device.
    """
    prompt_room = int(pool * ratio)
    for stage, room in ((prompts, prompt_room), (decodes, pool - prompt_room)):
        for shape in stage.fill(room, free):
            yield stage, shape
    for stage in (prompts, decodes):
        for shape in stage.fill(pool - prompts.used - decodes.used, free):
            yield stage, shape


def bucket(shape: Shape) -> tuple[int, ...]:
    """A shape as its users write it: (batch, length), with the blocks of a context behind them."""
    if shape.query == 1 and shape.kind != "prefill":
        return (shape.rows, shape.blocks)
    return (shape.rows, shape.query, shape.blocks) if shape.blocks else (shape.rows, shape.query)
