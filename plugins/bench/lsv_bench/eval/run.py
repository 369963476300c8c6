"""One engine evaluated: everything that was asked for, as one run of the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from lsv.config import EngineConfig
from lsv_base.errors import ErrorRecord, LsvError, from_record
from lsv_bench.eval.accuracy import measure_accuracy
from lsv_bench.eval.perplexity import measure_perplexity
from lsv_bench.eval.questions import Question
from lsv_bench.eval.result import Run
from lsv_bench.eval.speed import Lengths, measure_speed

if TYPE_CHECKING:
    from lsv import LLM

UNQUANTISED = "none"
"""What the format of plain weights is called."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured of each format; what is empty or None is not. ``windows`` are context and stride."""

    questions: Sequence[Question] = ()
    max_tokens: int = 256
    match: str = "exact"
    text: str = ""
    windows: tuple[int, int] = (1, 1)
    speed: Lengths | None = None

    @property
    def needs_text(self) -> bool:
        return bool(self.questions or self.text)


def format_name(config: EngineConfig) -> str:
    """The weight format of a configuration, and its KV cache's type where that is not the model's."""
    kv = "" if config.kv_dtype == "auto" else f", KV {config.kv_dtype}"
    return (config.quantization or UNQUANTISED) + kv


def evaluate(llm: LLM, work: Work, begin: Callable[[str, int | None], None], done: Callable[[], None]) -> Run:
    """Measure everything. ``begin`` hears what comes next and of how many parts, ``done`` of each part.

    An error of the engine names the format.
    """
    config = llm.config
    try:
        accuracy = perplexity = None
        speed = {}
        if work.questions:
            begin("questions", sum(len(question.choices) or 1 for question in work.questions))
            accuracy = measure_accuracy(llm, work.questions, max_tokens=work.max_tokens, match=work.match, done=done)
        if work.text:
            begin("text", None)
            perplexity = measure_perplexity(llm, work.text, *work.windows, done=done)
        if work.speed is not None:
            begin("speed", None)
            speed = measure_speed(llm, work.speed, done)
    except LsvError as error:
        message = f"{format_name(config)}: {error.message}"
        raise from_record(ErrorRecord(error.code, message, error.param)) from error
    return Run(
        format=format_name(config),
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        weight_bytes=llm.fit.weight_bytes,
        ops=llm.fit.ops,
        perplexity=perplexity,
        accuracy=accuracy,
        speed=speed,
    )
