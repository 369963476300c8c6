"""What recurrent families' config.json files have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.keys import Keys

TRAINING = ("time_step_min", "time_step_max", "time_step_floor", "time_step_scale", "rescale_prenorm_residual")
"""How weights are initialised."""
WITHOUT_ATTENTION = ("intermediate_size", "num_attention_heads", "num_key_value_heads")
"""What a model without attention and MLPs has no use for."""


def read_limits(keys: Keys, name: str = "time_step_limit") -> tuple[float, float]:
    """The bounds of time steps, of which transformers writes an infinite one as ``{"__float__": "Infinity"}``.

    Raises ``CheckpointError`` for anything but two numbers in their order.
    """
    given = keys.maybe(name, list)
    if given is None:
        return 0.0, math.inf
    limits = [_number(one) for one in given]
    if len(limits) != 2 or not limits[0] <= limits[1]:
        raise CheckpointError(f"config.json: {name} must be a lower and an upper bound, got {given!r:.100}")
    return limits[0], limits[1]


def _number(given: Any) -> float:
    if isinstance(given, Mapping):
        given = given.get("__float__")
    try:
        return float(given)
    except (TypeError, ValueError):
        return math.nan


def ignore(keys: Keys, *names: str) -> None:
    """These change nothing for who computes as this code does."""
    for name in names:
        keys.maybe(name, object)
