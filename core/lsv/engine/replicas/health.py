"""Several engines' states as that of one."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from lsv.engine.client import EngineStatus


def summarise(statuses: Sequence[EngineStatus], *, complete: bool, lost: Collection[int] = frozenset()) -> EngineStatus:
    """The state that a frontend goes by. Until all were ready once (``complete``), the furthest behind counts, and one
    that can't be started is a failed start; from then on one that is ready is enough. Those that are ``lost``, by
    number, have had their time, and the others never wait for them. ``error`` tells of those missing.
    """
    states = [status.state for status in statuses]
    error = "; ".join(f"replica {number}: {one.error}" for number, one in enumerate(statuses) if one.error) or None
    counted = {state for number, state in enumerate(states) if number not in lost}
    if set(states) == {"dead"} or ("dead" in counted and not complete):
        return EngineStatus(state="dead", error=error)
    if "ready" in states and (complete or counted == {"ready"}):
        silent = min(status.silent for status in statuses if status.state == "ready")
        return EngineStatus(state="ready", error=error, silent=silent)
    number = (
        states.index("loading") if "loading" in states else next(n for n, one in enumerate(states) if one != "dead")
    )
    stage = f"replica {number}: {statuses[number].stage}"
    return msgspec.structs.replace(statuses[number], stage=stage, error=error)
