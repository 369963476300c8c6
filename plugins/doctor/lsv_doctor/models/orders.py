"""What the process that checks classes is told, and what it answers. Light to import."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["runs", "wrong", "crash", "refused", "media", "untried"]
"""``runs``: equal to transformers. ``wrong``: other logits or tokens. ``crash``: an error that is no ``LsvError``, or
no answer in time. ``refused``: lsv says why not. ``media``: takes more than text, or stands around another model.
``untried``: there is no tiny checkpoint of it, or no reference.
"""
FAILED: tuple[State, ...] = ("wrong", "crash")


class Order(msgspec.Struct, frozen=True, tag=True):
    """A class to check, the ``model_type`` of its checkpoints, and whether it has an encoder."""

    architecture: str
    family: str
    encodes: bool = False


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What came of a check. ``detail`` says why it is not ``runs``, or what is odd about the reference."""

    architecture: str
    state: State
    detail: str = ""
    quantised: bool = False
    """Whether its weights are quantised while they are loaded."""
    parallel: bool = False
    """Whether it is cut over two ranks."""
    met: tuple[str, ...] = ()
    """What the engine did besides chunks and mixed batches: ``prefix`` (hits), ``preemption``."""
    seconds: float = 0.0
