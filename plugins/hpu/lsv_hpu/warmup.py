"""The shapes this platform pads steps to, and how they are made ready before the first request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import numpy.typing as npt

from lsv.capabilities import Padding
from lsv_base.errors import EngineDied
from lsv_base.processes.usage import written
from lsv_hpu.buckets.choice import choose_sizes
from lsv_hpu.buckets.table import DECODE, PROMPT, Buckets
from lsv_hpu.settings import HpuOptions
from lsv_runtime.devices.shapes import BatchLimits, Shape, ShapePolicy

log = logging.getLogger(__name__)

Int32s = npt.NDArray[np.int32]


class BucketPolicy(ShapePolicy):
    """Pads to buckets. Warm-up runs every bucket once, large ones first.

    ``free`` asks for the device's free bytes; ``seal`` is called once nothing may be compiled any more, where that was
    promised.
    A shape counts as ``blocks`` those of all rows when they decode, and of prompts those of the longest context before
    the new tokens.
    """

    def __init__(
        self,
        limits: BatchLimits,
        options: HpuOptions,
        free: Callable[[], int],
        *,
        seal: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(limits)
        self._options, self._free, self._seal = options, free, seal
        self.buckets = Buckets(choose_sizes(options, limits), limits)
        self.padding = Padding(self.buckets.sizes.prompt_bs, self.buckets.sizes.prompt_seq)
        self._sealed = False
        self.padded = Shape(DECODE, 0, 0, 0)
        """What the step before was padded to."""
        self.around: Callable[[Shape], AbstractContextManager[object]] = nullcontext
        """A context for each shape of warm-up."""

    def measure(self, kind: str, query: Int32s, context: Int32s) -> Shape:
        counted = context if kind == DECODE else context - query
        blocks = -(-counted.astype(np.int64) // self.limits.block_size)
        return Shape(kind, len(query), int(query.max()), int(blocks.sum() if kind == DECODE else blocks.max()))

    def pad(self, shape: Shape) -> Shape:
        """Raises ``EngineDied`` where full warm-up was promised and the step needs another shape."""
        found = self.buckets.fit(shape)
        if found is None and self._sealed:
            raise EngineDied(
                f"hpu.full_warmup promised that no shape appears after warm-up, and {self.describe(shape)} did: "
                "widen the buckets, or leave hpu.full_warmup out",
                param="hpu.full_warmup",
            )
        self.padded = found or shape
        return self.padded

    def widen(self, shape: Shape, size: int) -> Shape:
        return self.buckets.fit_size(shape, size) or shape

    def describe(self, shape: Shape) -> str:
        phase = "prompt" if shape.kind == PROMPT else shape.kind
        return f"({phase}, {', '.join(map(str, self.buckets.label(shape)))})"

    def expected(self) -> int:
        return 0 if self._options.skip_warmup else len(self.buckets.prompts) + len(self.buckets.decodes)

    def warmup(self) -> Iterator[Shape]:
        self._announce()
        if self._options.skip_warmup:
            log.warning("Warm-up is skipped: requests will wait for compilations")
            return
        began, before = time.monotonic(), self._free()
        prompts, decodes = self.buckets.prompts, self.buckets.decodes
        pace = _Pace(len(prompts) + len(decodes))
        for phase, shapes in (("Prompt", prompts), ("Decode", decodes)):
            for place, shape in enumerate(largest_first(shapes, self.buckets.label), start=1):
                self._log(phase, f"{place}/{len(shapes)}", shape)
                with self.around(shape):
                    yield shape
                pace.step()
        taken = written(max(0, before - self._free()))
        log.info("Warmup finished in %.0f secs, allocated %s of device memory", time.monotonic() - began, taken)
        self._sealed = self._options.full_warmup
        if self._sealed and self._seal is not None:
            self._seal()

    def _announce(self) -> None:
        summary = self.buckets.sizes.summary
        for phase, config, shapes in zip(
            ("prompt", "decode"), summary, (self.buckets.prompts, self.buckets.decodes), strict=True
        ):
            log.info("%s", config)
            log.info("Generated %d %s buckets: %s", len(shapes), phase, [self.buckets.label(one) for one in shapes])

    def _log(self, phase: str, place: str, shape: Shape) -> None:
        free = written(self._free())
        log.info("[Warmup][%s][%s] %s free_mem:%s", phase, place, self.buckets.describe(shape), free)


def largest_first(shapes: Sequence[Shape], label: Callable[[Shape], tuple[int, ...]]) -> list[Shape]:
    """Descending by batch times length, as ``label`` gives them; among equals small batches first."""

    def size(shape: Shape) -> tuple[int, int, int]:
        rows, length = label(shape)[:2]
        return -rows * length, rows, -shape.blocks

    return sorted(shapes, key=size)


class _Pace:
    """Tells in the log how long the rest of warm-up may take: at every tenth of it, judged by what is done."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._began = total, 0, time.monotonic()

    def step(self) -> None:
        self._done += 1
        tenth = max(1, self._total // 10)
        if self._done % tenth == 0 and self._done < self._total:
            left = (time.monotonic() - self._began) / self._done * (self._total - self._done)
            log.info("Warm-up: %d of %d shapes are ready, about %.0f s to go", self._done, self._total, left)
