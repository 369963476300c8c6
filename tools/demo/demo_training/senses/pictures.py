"""Pictures of plain shapes, and questions about their colour, shape, number and place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import product
from random import Random

import numpy as np

from demo_training.senses.asked import Shown, Turn, article, counted, said
from demo_training.senses.shapes import COLOURS, SHAPES, Thing, background, paint, tint
from lsv.media.processor import Image

PLACES = (
    ("top left", "in the top left"), ("top", "at the top"), ("top right", "in the top right"),
    ("left", "on the left"), ("middle", "in the middle"), ("right", "on the right"),
    ("bottom left", "in the bottom left"), ("bottom", "at the bottom"), ("bottom right", "in the bottom right"),
)  # fmt: skip
"""The nine fields of a picture, row by row: their names, and how to say that something is there."""
AMONG_SEVERAL = "position among several"
"""Counted on its own: it takes far longer to learn than to tell where a single thing is."""
MIDDLE = 4
MOST = 6
ASPECTS = (len(SHAPES) * len(COLOURS) + 1,) * len(PLACES) + (MOST + 1,) * (len(SHAPES) + len(COLOURS) + 1)
"""Classes of each label: what is in each field, and how many things there are of each shape, each colour and at all."""


@dataclass(frozen=True)
class Scenes:
    """What pictures show: a single thing in the share ``single`` of them, else two to ``most``.

    In the share ``crossed`` of those with two to four, things are told apart by shape and colour together alone.
    """

    most: int = MOST
    single: float = 0.45
    crossed: float = 0.0


SCENES = Scenes()
KNOWN = Scenes(most=4)
"""What the model is asked about: five and six things it has seen, too, but counts them badly."""


def picture(rng: Random, side: int, wide: int | None = None, scenes: Scenes = SCENES) -> Shown:
    """A random picture ``side`` pixels high and ``wide`` (or as much) across."""
    wide = wide or side
    aspect = (wide / min(side, wide), side / min(side, wide))
    chance = rng.random()
    if chance < scenes.single:
        placed = _single(rng, aspect)
    elif chance < 0.85:
        placed = _spread(rng, aspect, scenes)
    else:
        placed = _row(rng, aspect, scenes)
    things = tuple(thing for _, thing in placed)
    ground = background(rng, {thing.colour for thing in things})
    canvas = np.empty((side, wide, 3), np.float32)
    canvas[:] = ground
    paint(canvas, things, softness=rng.choice((0.2, 1.0, 1.0, 1.6)))
    if rng.random() < 0.15:
        canvas += np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(1, 6), canvas.shape)
    pixels = np.clip(np.rint(canvas), 0, 255).astype(np.uint8)
    key = " ".join(f"{thing.colour} {thing.shape} {field}" for field, thing in placed)
    ask = _ask_single if len(placed) == 1 else _ask_several
    return Shown("image", Image(pixels), ask(rng, placed), key, _labels(placed))


Placed = list[tuple[int, Thing]]
"""Things with the fields that they are in; -1 where fields are not asked for."""


def _labels(placed: Placed) -> tuple[int, ...]:
    shapes, colours = list(SHAPES), list(COLOURS)
    fields = [-1 if placed[0][0] < 0 else 0] * len(PLACES)
    for field, thing in placed:
        if field >= 0:
            fields[field] = 1 + shapes.index(thing.shape) * len(colours) + colours.index(thing.colour)
    of_shape = Counter(thing.shape for _, thing in placed)
    of_colour = Counter(thing.colour for _, thing in placed)
    return (*fields, *(of_shape[one] for one in shapes), *(of_colour[one] for one in colours), len(placed))


def _thing(rng: Random, shape: str, colour: str, x: float, y: float, radius: float) -> Thing:
    turn = rng.uniform(-0.2, 0.2) if rng.random() < 0.4 else 0.0
    return Thing(shape, colour, x, y, radius, tint(colour, rng), turn)


def _single(rng: Random, aspect: tuple[float, float]) -> Placed:
    field = MIDDLE if rng.random() < 0.35 else rng.randrange(9)
    shape, colour = rng.choice(list(SHAPES)), rng.choice(list(COLOURS))
    largest = 0.42 if field == MIDDLE else 0.17
    radius = rng.uniform(0.09, largest)
    x, y = _inside(rng, field, aspect)
    return [(field, _thing(rng, shape, colour, x, y, radius))]


def _inside(rng: Random, field: int, aspect: tuple[float, float]) -> tuple[float, float]:
    """Somewhere well within a field."""
    row, column = divmod(field, 3)
    x, y = ((index + 0.5 + rng.uniform(-0.22, 0.22)) / 3 for index in (column, row))
    return x * aspect[0], y * aspect[1]


def _kinds(rng: Random, count: int, crossed: float) -> list[tuple[str, str]]:
    """(shape, colour) of ``count`` things: all alike, alike in shape or colour, any, or two shapes in two colours."""
    shapes, colours = list(SHAPES), list(COLOURS)
    if crossed and count <= 4 and rng.random() < crossed:
        return rng.sample(list(product(rng.sample(shapes, 2), rng.sample(colours, 2))), count)
    chance = rng.random()
    shape, colour = rng.choice(shapes), rng.choice(colours)
    if chance < 0.25:
        return [(shape, colour)] * count
    if chance < 0.4:
        return [(shape, rng.choice(colours)) for _ in range(count)]
    if chance < 0.5:
        return [(rng.choice(shapes), colour) for _ in range(count)]
    pool = [(rng.choice(shapes), rng.choice(colours)) for _ in range(rng.randint(2, count))]
    return [rng.choice(pool) for _ in range(count)]


def _spread(rng: Random, aspect: tuple[float, float], scenes: Scenes) -> Placed:
    """Several things, each in a field of its own."""
    count = rng.randint(2, scenes.most)
    fields = sorted(rng.sample(range(9), count))
    size = rng.uniform(0.07, 0.13)
    placed: Placed = []
    for field, (shape, colour) in zip(fields, _kinds(rng, count, scenes.crossed), strict=True):
        x, y = _inside(rng, field, aspect)
        placed.append((field, _thing(rng, shape, colour, x, y, size * rng.uniform(0.85, 1.1))))
    return placed


def _row(rng: Random, aspect: tuple[float, float], scenes: Scenes) -> Placed:
    """Several things side by side, or one below the other."""
    count = rng.randint(2, scenes.most)
    radius = min(0.14, 0.4 / count) * rng.uniform(0.75, 1)
    middle, lying = rng.uniform(0.3, 0.7), rng.random() < 0.75
    placed: Placed = []
    for index, (shape, colour) in enumerate(_kinds(rng, count, scenes.crossed)):
        place = (index + 0.5) / count, middle
        x, y = place if lying else place[::-1]
        placed.append((-1, _thing(rng, shape, colour, x * aspect[0], y * aspect[1], radius)))
    return placed


def _ask_single(rng: Random, placed: Placed) -> tuple[Turn, ...]:
    ((field, thing),) = placed
    shape, colour, where = thing.shape, thing.colour, PLACES[field][1]
    other = rng.choice([one for one in SHAPES if one != shape])
    turns = [
        Turn("colour", said(rng, f"What colour is the {shape}?", f"Which colour does the {shape} have?"),
             f"The {shape} is {colour}."),
        Turn("colour", said(rng, "What colour is it?", "What colour is this?", "What is the colour of the shape?"),
             f"It is {colour}."),
        Turn("shape", said(rng, "What shape is it?", "What shape is this?", "Which shape do you see?"),
             f"It is {article(shape)}."),
        Turn("shape", said(rng, "What is in the picture?", "What do you see?", "What is this?", "What is shown here?"),
             f"{article(colour).capitalize()} {shape}."),
        Turn("position", said(rng, f"Where is the {shape}?", f"Where is the {colour} {shape}?"),
             f"The {shape} is {where}."),
        Turn("position", said(rng, "Where is it?", "In which part of the picture is it?"), f"It is {where}."),
        Turn("count", said(rng, "How many shapes are there?", "How many shapes do you see?"), "There is 1 shape."),
        Turn("count", said(rng, f"How many {shape}s are there?", f"Count the {shape}s."), f"There is 1 {shape}."),
        Turn("count", said(rng, f"How many {other}s are there?"), f"There are no {other}s."),
        Turn("describe", said(rng, "Describe the picture.", "Describe what you see."),
             f"{article(colour).capitalize()} {shape} {where}."),
    ]  # fmt: skip
    return tuple(turns)


def _ask_several(rng: Random, placed: Placed) -> tuple[Turn, ...]:
    things = [thing for _, thing in placed]
    shapes, colours = Counter(thing.shape for thing in things), Counter(thing.colour for thing in things)
    kinds = Counter((thing.shape, thing.colour) for thing in things)
    total = len(things)
    turns = [Turn("count", said(rng, "How many shapes are there?", "How many shapes do you see?"),
                  f"There are {total} shapes.")]  # fmt: skip
    for shape in rng.sample(list(SHAPES), 2) if rng.random() < 0.4 else shapes:
        turns.append(_how_many(rng, shape, shapes[shape]))
    for colour in rng.sample(list(colours), 1):
        turns.append(_how_many(rng, f"{colour} shape", colours[colour]))
    for field, thing in placed:
        shape, colour = thing.shape, thing.colour
        if shapes[shape] == 1:
            turns.append(Turn("colour", said(rng, f"What colour is the {shape}?"), f"The {shape} is {colour}."))
        if colours[colour] == 1:
            turns.append(Turn("shape", said(rng, f"Which shape is {colour}?", f"What shape is the {colour} one?"),
                              f"It is {article(shape)}."))  # fmt: skip
        if field < 0:
            continue
        if kinds[shape, colour] == 1:
            turns.append(Turn(AMONG_SEVERAL, said(rng, f"Where is the {colour} {shape}?"),
                              f"The {colour} {shape} is {PLACES[field][1]}."))  # fmt: skip
        turns.append(Turn("shape", said(rng, f"What is {PLACES[field][1]}?", f"What do you see {PLACES[field][1]}?"),
                          f"{article(colour).capitalize()} {shape}."))  # fmt: skip
    if total <= 4:
        listed = [article(f"{thing.colour} {thing.shape}") for thing in things]
        turns.append(Turn("describe", said(rng, "Describe the picture.", "What is in the picture?", "What do you see?"),
                          f"{total} shapes: {', '.join(listed[:-1])} and {listed[-1]}."))  # fmt: skip
    return tuple(turns)


def _how_many(rng: Random, noun: str, count: int) -> Turn:
    verb = "is" if count == 1 else "are"
    return Turn("count", said(rng, f"How many {noun}s are there?", f"Count the {noun}s."),
                f"There {verb} {counted(count, noun)}.")  # fmt: skip
