"""Why an architecture can't run through the adapter, and what to do then."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lsv_base.errors import CheckpointError


class Refused(Exception):
    """An architecture that can't run through the adapter, and why."""


def refuse(architecture: str, cause: Exception, known: Iterable[str]) -> CheckpointError:
    """The error for who wanted to load it. ``known`` are the architectures that run natively."""
    reason = str(cause) if isinstance(cause, Refused) else f"building it failed: {cause!r:.500}"
    names = {name.partition("For")[0].lower(): name for name in known}
    like = difflib.get_close_matches(architecture.partition("For")[0].lower(), names, n=3, cutoff=0.5)
    near = f"; most like it by name: {', '.join(names[name] for name in like)}" if like else ""
    return CheckpointError(
        f"{architecture}: no model offers it, and it can't run through the transformers adapter: {reason}{near}. "
        "docs/developing.md says how a plugin adds a model"
    )
