"""What an evaluation leaves behind: one versioned JSON document, and reading it again as a baseline."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lsv.config import BoundOp
from lsv_base.errors import ConfigError
from lsv_bench.eval.accuracy import Accuracy
from lsv_bench.eval.paired import Paired
from lsv_bench.eval.perplexity import Perplexity
from lsv_bench.figures import Figures
from lsv_bench.machine import Machine
from lsv_bench.result import read_document

FORMAT = 1
"""Grows when a reader of the last format would misread a document."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured on: a file or a model's own set, ``size`` questions or bytes, and a digest of them."""

    name: str
    size: int
    digest: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One weight format. ``weight_bytes`` are as the weights are held; ``ops`` says what serves each op.

    ``paired`` compares with the baseline; None for the baseline itself.
    """

    format: str
    dtype: str
    kv_dtype: str
    weight_bytes: int
    ops: Sequence[BoundOp] = ()
    perplexity: Perplexity | None = None
    accuracy: Accuracy | None = None
    speed: Figures = {}
    paired: Paired | None = None


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """``time`` is UTC, ISO 8601. Runs are compared with ``baseline``, or with the first where that is None."""

    lsv_eval: int = FORMAT
    model: str
    command: str
    time: str
    machine: Machine
    questions: Source | None = None
    text: Source | None = None
    baseline: Run | None = None
    runs: list[Run] = []


def read_baseline(path: str, *, questions: Source | None, text: Source | None, windows: tuple[int, int] | None) -> Run:
    """The first run of an earlier evaluation.

    Raises ``ConfigError`` for a file that is missing or no evaluation, or that measured on other questions, another
    text, or the text in other ``windows`` (context, stride).
    """
    found = read_document(path, Evaluation, "eval", FORMAT, "--json", "baseline")
    if not found.runs:
        raise ConfigError(f"baseline {path} holds no run", param="baseline")
    first = found.runs[0]
    for what, mine, other in (("questions", questions, found.questions), ("text", text, found.text)):
        if mine is not None and (other is None or other.digest != mine.digest):
            theirs = f"{other.name} ({other.size})" if other else "none"
            raise ConfigError(
                f"baseline {path} was measured on other {what} ({theirs}) than {mine.name} ({mine.size}): "
                "only the same compare",
                param="baseline",
            )
    scored = first.perplexity
    if text is not None and scored is not None and (scored.context, scored.stride) != windows:
        raise ConfigError(
            f"baseline {path} has context={scored.context} and stride={scored.stride}: give the same", param="baseline"
        )
    return first
