"""Damage done to valid input: to bytes, to the tree of a JSON text, to what is framed by a length."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

Mutate = Callable[[bytes, Random], bytes]

_NUMBERS = (0, 1, 2, 7, 127, 128, 255, 256, 32767, 65535, 1 << 24, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
_ODD: Sequence[Any] = (
    None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 63, -(1 << 63), 10**30, 0.0, -0.5, 1e308, float("nan"), float("inf"),
    "", "x", "0", "\x00", "\ud800", "null", "../../etc/passwd", "é" * 40, "a" * 5000,
    [], [[]], [None], [0] * 50, {}, {"": {}}, {"x": None}, [1, "x", None, {}],
)  # fmt: skip
_DEEP = 5000


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """One to six edits."""
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        data = rng.choice(_EDITS)(data, rng)
    return data


def mutate_json(data: bytes, rng: Random) -> bytes:
    """Mostly a change of the tree, so that what is read behind the parser is reached; otherwise of the bytes."""
    if rng.random() < 0.15:
        return mutate_bytes(data, rng)
    if rng.random() < 0.02:
        return b'{"deep":' * _DEEP + b"0" + b"}" * _DEEP if rng.random() < 0.5 else b"[" * 200_000
    tree = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        tree = mutate_tree(tree, rng)
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def framed_json(data: bytes, rng: Random) -> bytes:
    """A JSON text behind its length (u64, little endian) and before more bytes, as in safetensors."""
    (length,) = struct.unpack("<Q", data[:8])
    text, rest = data[8 : 8 + length], data[8 + length :]
    if rng.random() < 0.2:
        return mutate_bytes(data[: 8 + length + 64], rng) + rest[64:]
    changed = mutate_json(text, rng)
    told = len(changed) if rng.random() < 0.9 else rng.choice(_NUMBERS)
    return struct.pack("<Q", told) + changed + rest


def mutate_tree(tree: Any, rng: Random) -> Any:
    """Plain data with one node changed, which any node may be."""
    return _changed(tree, rng.choice(list(_paths(tree))), rng)


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree[:20]) if isinstance(tree, list) else ()
    for number, (key, value) in enumerate(inner):
        if number < 200:
            yield from _paths(value, (*path, key))


def _changed(tree: Any, path: tuple[Any, ...], rng: Random) -> Any:
    if path:
        copy = dict(tree) if isinstance(tree, dict) else list(tree)
        copy[path[0]] = _changed(tree[path[0]], path[1:], rng)
        return copy
    if isinstance(tree, dict) and tree and rng.random() < 0.6:
        copy = dict(tree)
        value = copy.pop(rng.choice(list(copy)))
        if rng.random() < 0.3:
            copy[rng.choice(("x", "", *copy, "layer_types"))] = value
        return copy
    if isinstance(tree, list) and tree and rng.random() < 0.6:
        return rng.choice((tree[:-1], tree + tree, tree[::-1], [*tree, rng.choice(_ODD)]))
    if isinstance(tree, int | float) and not isinstance(tree, bool) and rng.random() < 0.5:
        return rng.choice(
            (tree + 1, tree - 1, -tree, tree * 2, tree // 2 if tree == tree else 0, float(tree), str(tree))
        )
    return rng.choice(_ODD)


def _flip(data: bytes, rng: Random) -> bytes:
    return _replaced(data, rng, bytes([rng.randrange(256)]))


def _set_number(data: bytes, rng: Random) -> bytes:
    """A number of one to eight bytes, which may be a length, a count or a type."""
    size, number = rng.choice((1, 2, 4, 4, 8, 8)), rng.choice(_NUMBERS) * rng.choice((1, 1, -1))
    order = "little" if rng.random() < 0.7 else "big"
    return _replaced(data, rng, (number % (1 << 8 * size)).to_bytes(size, order))


def _replaced(data: bytes, rng: Random, new: bytes) -> bytes:
    """At a place that is more often near the beginning, where heads are."""
    if len(data) < len(new):
        return new
    place = int((len(data) - len(new)) * rng.random() ** rng.choice((1, 3, 6)))
    return data[:place] + new + data[place + len(new) :]


def _cut(data: bytes, rng: Random) -> bytes:
    return data[: int(len(data) * rng.random())]


def _drop(data: bytes, rng: Random) -> bytes:
    start = int(len(data) * rng.random() ** 2)
    return data[:start] + data[start + rng.randint(1, 64) :]


def _insert(data: bytes, rng: Random) -> bytes:
    start = int(len(data) * rng.random() ** 2)
    new = rng.choice((rng.randbytes(rng.randint(1, 32)), bytes(rng.randint(1, 256)), data[: rng.randint(0, 256)]))
    return data[:start] + new + data[start:]


def _repeat(data: bytes, rng: Random) -> bytes:
    start = int(len(data) * rng.random() ** 2)
    return data[:start] + data[start : start + rng.randint(1, 512)] * rng.randint(2, 5) + data[start:]


_EDITS: Sequence[Mutate] = (_flip, _flip, _set_number, _set_number, _set_number, _cut, _drop, _insert, _repeat)
