"""Clips of a shape that moves, and questions about which way."""

from __future__ import annotations

from random import Random

import numpy as np

from demo_training.senses.asked import Shown, Turn, article, said
from demo_training.senses.shapes import COLOURS, SHAPES, Thing, background, paint, tint
from lsv.media.processor import Video

WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "not at all": (0, 0)}
ASPECTS = (len(WAYS), len(SHAPES), len(COLOURS))
"""Classes of each label: which way, what shape and what colour."""


def clip(rng: Random, side: int, frames: int, seconds: float = 2.0) -> Shown:
    """One shape that moves across a picture of ``side`` x ``side`` pixels, or stays where it is."""
    shape, colour, way = rng.choice(list(SHAPES)), rng.choice(list(COLOURS)), rng.choice(list(WAYS))
    across, down = WAYS[way]
    radius = rng.uniform(0.08, 0.2)
    travel = rng.uniform(0.25, 0.95 - 2 * radius)
    start_x, start_y = (_start(rng, step * travel, radius) for step in (across, down))
    level = tint(colour, rng)
    canvas = np.empty((frames, side, side, 3), np.float32)
    canvas[:] = background(rng, {colour})
    softness = rng.choice((0.2, 1.0, 1.6))
    first, last = sorted((rng.uniform(0, 0.15), rng.uniform(0.85, 1)))
    for index, frame in enumerate(canvas):
        share = min(1.0, max(0.0, (index / max(1, frames - 1) - first) / (last - first))) * travel
        thing = Thing(shape, colour, start_x + across * share, start_y + down * share, radius, level)
        paint(frame, (thing,), softness)
    pixels = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
    times = np.linspace(0, seconds, frames, dtype=np.float32)
    labels = tuple(list(names).index(name) for names, name in ((WAYS, way), (SHAPES, shape), (COLOURS, colour)))
    key = f"{shape} {colour} {way} {start_x:.1f} {start_y:.1f} {travel:.1f}"
    return Shown("video", Video(pixels, times), _ask(rng, shape, colour, way), key, labels)


def _start(rng: Random, travel: float, radius: float) -> float:
    """Where to begin along one axis so as to stay in the picture."""
    return rng.uniform(radius - min(0.0, travel), 1 - radius - max(0.0, travel))


def _ask(rng: Random, shape: str, colour: str, way: str) -> tuple[Turn, ...]:
    still = way == "not at all"
    moves = "does not move" if still else f"moves {way}"
    return (
        Turn("motion", said(rng, "Which way does it move?", "Where does it move?", "In which direction does it move?",
                            "Which way is it moving?"), f"It {moves}."),
        Turn("motion", said(rng, f"Which way does the {shape} move?", f"In which direction does the {shape} move?",
                            f"Where does the {colour} {shape} go?"), f"The {shape} {moves}."),
        Turn("describe", said(rng, "What happens?", "What happens in the clip?", "Describe the clip.",
                              "Describe the video."), f"{article(colour).capitalize()} {shape} {moves}."),
        Turn("describe", said(rng, "What moves?" if not still else "What do you see?", "What is in the clip?"),
             f"{article(colour).capitalize()} {shape}."),
        Turn("describe", said(rng, f"What colour is the {shape}?"), f"The {shape} is {colour}."),
    )  # fmt: skip
