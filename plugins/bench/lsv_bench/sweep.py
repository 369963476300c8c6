"""Sweeps: which points a suite has, and what each of them changes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from lsv.settings import Declared, convert, dashed
from lsv_base.errors import ConfigError
from lsv_bench.result import Point

Measured = Literal["serve", "latency", "throughput"]

_ENOUGH = 16
"""A point of a rate or a concurrency suite sends at least that many requests."""
_ROUNDS = 4
"""Requests per open one in a concurrency suite."""
_SECONDS = 8
"""For how long requests arrive in a rate suite."""
_BURST = 256


class Suite(msgspec.Struct, frozen=True):
    """``values`` of the setting ``axis``; by what is measured, where the axis goes by another name or not at all."""

    axis: Mapping[str, str]
    values: Sequence[str]


SUITES = {
    "rate": Suite({"serve": "request_rate"}, ("1", "2", "4", "8", "16", "32", "inf")),
    "concurrency": Suite(
        {"serve": "max_concurrency", "latency": "batch_size", "throughput": "num_prompts"},
        ("1", "2", "4", "8", "16", "32", "64", "128"),
    ),
    "input": Suite(
        dict.fromkeys(("serve", "latency", "throughput"), "random_input_len"),
        ("128", "256", "512", "1024", "2048", "4096", "8192", "16384"),
    ),
    "output": Suite(
        dict.fromkeys(("serve", "latency", "throughput"), "random_output_len"),
        ("64", "128", "256", "512", "1024", "2048"),
    ),
}
"""Saturation; the best batch size; time to first token over prompts; inter-token latency as the cache grows."""


class Step(msgspec.Struct, frozen=True):
    """One point, and all settings that it changes."""

    point: Point
    changes: Mapping[str, Any]


def steps(
    suite: str, measured: Measured, declared: Declared, values: Sequence[str] = (), *, prompts: int | None = None
) -> list[Step]:
    """The points of a suite, or of its axis at other ``values``.

    ``prompts`` is the number of requests a point sends; without it that follows the rate or the concurrency. Raises
    ``ConfigError`` for a suite that does not apply and for values that the setting does not take.
    """
    chosen = SUITES[suite]
    if measured not in chosen.axis:
        raise ConfigError(f"the {suite} suite needs a server: use lsv bench sweep serve", param="suite")
    axis = chosen.axis[measured]
    found = []
    for text in values or chosen.values:
        value = convert(declared.by_name[axis], text, f"a value of the {suite} suite")
        count = {} if prompts or measured != "serve" else _count(suite, value)
        found.append(Step({axis: value}, {axis: value, **count}))
    return found


def read_steps(path: str, declared: Declared) -> list[Step]:
    """Points from a JSON file: a list of objects, option → value. Raises ``ConfigError``."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise ConfigError(f"{path} can't be read as JSON: {cause}", param="bench_params") from cause
    if not isinstance(content, list) or not content or not all(isinstance(entry, dict) for entry in content):
        raise ConfigError(f'{path} must hold a list such as [{{"request_rate": 4}}, …]', param="bench_params")
    return [_read_step(f"{path}, entry {number}", entry, declared) for number, entry in enumerate(content)]


def _read_step(place: str, entry: Mapping[str, Any], declared: Declared) -> Step:
    changes = {}
    for key, value in entry.items():
        setting = declared.by_key.get(dashed(key))
        if setting is None or setting.scope != "all" or setting.group:
            raise ConfigError(f"{place}: {key} is not an option that differs between points", param="bench_params")
        changes[setting.name] = convert(setting, value, place)
    return Step({name: value if isinstance(value, int | float) else str(value) for name, value in changes.items()},
                changes)  # fmt: skip


def _count(suite: str, value: Any) -> dict[str, int]:
    """How many requests show what a point is like."""
    if suite == "concurrency":
        return {"num_prompts": max(_ENOUGH, _ROUNDS * value)}
    if suite == "rate":
        rate = float(value)
        return {"num_prompts": _BURST if math.isinf(rate) else max(_ENOUGH, round(_SECONDS * rate))}
    return {}
