"""Plain shapes, drawn by their distance functions, so that edges are smooth at any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, pi, sin
from random import Random

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

COLOURS: Mapping[str, tuple[tuple[int, int, int], ...]] = {
    "red": ((220, 30, 30), (255, 0, 0)),
    "green": ((30, 160, 50), (0, 128, 0), (0, 220, 0)),
    "blue": ((35, 70, 220), (0, 0, 255)),
    "yellow": ((250, 220, 30), (255, 255, 0)),
    "orange": ((250, 140, 20), (255, 165, 0)),
    "purple": ((130, 40, 170), (128, 0, 128)),
    "black": ((15, 15, 15), (0, 0, 0)),
    "white": ((245, 245, 245), (255, 255, 255)),
}
"""Names of colours and levels that go by them: red, green and blue, 0 … 255."""


def _circle(x: Floats, y: Floats) -> Floats:
    return np.hypot(x, y) - 1


def _square(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.abs(x), np.abs(y)) - 0.86


def _triangle(x: Floats, y: Floats) -> Floats:
    """Of equal sides, standing on one of them."""
    slope = np.abs(x) * cos(pi / 6) - (y - 0.15) * sin(pi / 6)
    return np.maximum(slope, y - 0.15) - 0.55


def _star(x: Floats, y: Floats) -> Floats:
    """With five points: the distance from the edge between a point and a notch, folded over all ten."""
    angle = np.abs((np.arctan2(x, -y) + pi / 5) % (2 * pi / 5) - pi / 5)
    radius = np.hypot(x, y) / 1.12
    notch = (0.42 * cos(pi / 5), 0.42 * sin(pi / 5))
    length = np.hypot(1 - notch[0], notch[1])
    along, across = radius * np.cos(angle) - 1, radius * np.sin(angle)
    return (along * notch[1] + across * (1 - notch[0])) / length


SHAPES: Mapping[str, Callable[[Floats, Floats], Floats]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
}
"""Signed distances from the edge of a shape of radius 1 around the origin; y points down."""


@dataclass(frozen=True)
class Thing:
    """A shape in a picture: centre and radius as shares of the picture's shorter side, ``turn`` in radians."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float
    tint: tuple[int, int, int]
    turn: float = 0.0


def tint(colour: str, rng: Random) -> tuple[int, int, int]:
    """One of the many tints that go by a colour's name."""
    red, green, blue = (min(255, max(0, level + rng.randint(-14, 14))) for level in rng.choice(COLOURS[colour]))
    return red, green, blue


def paint(canvas: Floats, things: tuple[Thing, ...], softness: float = 1.0) -> None:
    """Draw things on ``canvas`` [height, width, 3], levels 0 … 255; edges are ``softness`` pixels wide."""
    height, width = canvas.shape[:2]
    side = min(height, width)
    for thing in things:
        reach = thing.radius * 1.3 * side + 2
        top, bottom = (int(min(height, max(0, thing.y * side + sign * reach))) for sign in (-1, 1))
        left, right = (int(min(width, max(0, thing.x * side + sign * reach))) for sign in (-1, 1))
        y, x = np.mgrid[top:bottom, left:right].astype(np.float32) + 0.5
        x, y = (x / side - thing.x) / thing.radius, (y / side - thing.y) / thing.radius
        c, s = cos(thing.turn), sin(thing.turn)
        distance = SHAPES[thing.shape](c * x + s * y, c * y - s * x) * thing.radius * side
        cover = np.clip(0.5 - distance / softness, 0, 1)[..., None]
        region = canvas[top:bottom, left:right]
        region += cover * (np.array(thing.tint, np.float32) - region)


def background(rng: Random, taken: set[str]) -> tuple[int, int, int]:
    """White mostly, else black, a grey or a pale colour: none that a thing of the ``taken`` colours would vanish on."""
    chance = rng.random()
    if chance < 0.45 and "white" not in taken:
        level = rng.choice((255, 255, 250, 240))
        return level, level, level
    if chance < 0.6 and "black" not in taken:
        return (0, 0, 0) if rng.random() < 0.5 else (20, 20, 25)
    if chance < 0.8 or "white" in taken:
        level = rng.randint(95, 160)
        return level, level, level
    red, green, blue = (rng.randint(185, 235) for _ in range(3))
    return red, green, blue
