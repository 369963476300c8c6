"""What the process that checks classes is told, and what it answers. Light to import."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

State = Literal["runs", "wrong", "crash", "refused", "untried"]
"""``runs``: equal to transformers. ``wrong``: other logits or tokens. ``crash``: an error that is no ``LsvError``, or
no answer in time. ``refused``: lsv says why not. ``untried``: there is no tiny checkpoint of it, or no reference.
"""
FAILED: tuple[State, ...] = ("wrong", "crash")

TextModel = Literal["decoder", "encoder-decoder", "other", ""]
"""What writes the text of a class. ``other`` does not go from token to token, or writes no text. Empty: not known."""

Cell = Literal["yes", "no", "wrong", "none", ""]
"""``yes``: a run has shown it. ``no``: lsv refuses it. ``wrong``: it runs, and the answers differ, or it crashes.
``none``: the class has nothing of the kind. Empty: there was no run.
"""
WORDS: Mapping[Cell, str] = {"yes": "yes", "no": "no", "wrong": "wrong", "none": "–", "": "not tried"}
"""How cells are shown."""
COLUMNS = ("images", "sound", "video", "quantised", "ranks", "adapters", "mtp")
"""What is recorded of a class besides its text; ``lsv_doctor.models.trials`` has the runs."""


class Order(msgspec.Struct, frozen=True, tag=True):
    """A class to check, the ``model_type`` of its checkpoints, whether it has an encoder of texts, and whether it wraps
    a text model, with towers or without.
    """

    architecture: str
    family: str
    encodes: bool = False
    wraps: bool = False


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of a check. ``detail`` says why it is not ``runs``, or what is odd about the reference."""

    architecture: str
    state: State
    detail: str = ""
    text_model: TextModel = ""
    cells: Mapping[str, Cell] = {}
    """By column. A column that is missing had no run."""
    reasons: Mapping[str, str] = {}
    """By column: why it is not ``yes``, in words."""
    met: tuple[str, ...] = ()
    """What the engine did besides chunks and mixed batches: ``prefix`` (hits), ``preemption``."""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether text or anything else of it is wrong."""
        return self.state in FAILED or "wrong" in self.cells.values()
