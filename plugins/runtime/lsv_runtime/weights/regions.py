"""Regions of stored tensors: which elements of a file a rank needs that has a part of some axes."""

from __future__ import annotations

from collections.abc import Sequence

Region = Sequence[slice]
"""A part of each axis, from the first one on; axes that are not named are whole."""


def span_of(region: Region, axis: int, size: int) -> slice:
    """The part of an axis of so many elements."""
    return region[axis] if axis < len(region) else slice(0, size)


def runs_of(region: Region, shape: Sequence[int]) -> tuple[list[int], int]:
    """Where in a tensor the region's runs of neighbouring elements begin, in order, and how long each is."""
    begins, run, size = [0], 1, 1  # of the axes behind the one that comes next
    for axis in reversed(range(len(shape))):
        part = span_of(region, axis, shape[axis])
        if run == size:  # they are whole
            begins, run = [part.start * size], (part.stop - part.start) * size
        else:
            begins = [place * size + begin for place in range(part.start, part.stop) for begin in begins]
        size *= shape[axis]
    return begins, run
