"""Which frames of a video are taken, by their times alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lsv.media.options import Limits
from lsv_base.errors import BadRequest

SAMPLING = ("fps", "num_frames")
"""Options that say which frames of a video are taken; the processor does not see them."""
DEFAULT_FPS = 2.0
DEFAULT_FRAMES = 64
"""Most frames where no option says how many."""


def choose_frames(times: Sequence[float], options: Mapping[str, Any], limits: Limits) -> list[int]:
    """Indices among the frames' ``times`` in seconds, ascending."""
    fps, count = (_positive(options, name) for name in SAMPLING)
    if fps is not None and count is not None:
        raise BadRequest("give either fps or num_frames, not both", param="mm_processor_kwargs")
    most = limits.frames if fps is not None else DEFAULT_FRAMES
    if count is not None:
        if count != int(count) or count > limits.frames:
            raise BadRequest(
                f"num_frames must be a whole number up to {limits.frames}, got {count:g}", param="mm_processor_kwargs"
            )
        return _spread(len(times), int(count))
    span = times[-1] - times[0]
    moments = int(span * (fps or DEFAULT_FPS) + 1e-6) + 1
    if moments > most:
        return _spread(len(times), most)
    at = [times[0] + moment / (fps or DEFAULT_FPS) for moment in range(moments)]
    shown = np.searchsorted(np.asarray(times), np.asarray(at) + 1e-3, side="right") - 1
    return sorted({max(0, int(index)) for index in shown})


def _spread(total: int, count: int) -> list[int]:
    return sorted({int(index) for index in np.linspace(0, total - 1, min(count, total)).round()})


def _positive(options: Mapping[str, Any], name: str) -> float | None:
    value = options.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise BadRequest(f"{name} must be a positive number, got {value!r:.40}", param="mm_processor_kwargs")
    return float(value)
