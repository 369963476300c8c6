"""``lsv eval [MODEL]``: perplexity, accuracy, size and speed, of one weight format or of several."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from lsv.cli.context import CommandContext
from lsv.resolve import resolve
from lsv.settings import Setting, Settings
from lsv_base.errors import ConfigError
from lsv_bench.eval.formats import choose_formats
from lsv_bench.eval.matching import MATCHES
from lsv_bench.eval.paired import compare
from lsv_bench.eval.perplexity import choose_windows
from lsv_bench.eval.result import Evaluation, Run, read_baseline
from lsv_bench.eval.run import Work, evaluate
from lsv_bench.eval.sources import Material, gather_material
from lsv_bench.eval.speed import Lengths
from lsv_bench.eval.tables import columns, markdown, show_evaluation, shown_runs
from lsv_bench.machine import describe_machine
from lsv_bench.result import write_result

SETTINGS = (
    Setting(name="questions", help="JSONL file of questions with their answers", scope="all"),
    Setting(
        name="gsm8k", help="ask GSM8K instead: its published test.jsonl, lines of question and answer", scope="all"
    ),
    Setting(name="shots", type="int", low=0, help="worked examples before each problem of GSM8K (5)", scope="all"),
    Setting(name="shots_from", help="file of them, such as GSM8K's train.jsonl (default: lsv's own)", scope="all"),
    Setting(name="text", help="file whose perplexity is measured", scope="all"),
    Setting(
        name="formats", type="list", default=(),
        help="weight formats to compare with the first, e.g. none,int8; all is every one this model can be given",
        scope="all",
    ),
    Setting(name="baseline", help="compare with the first format of this --json file instead", scope="all"),
    Setting(
        name="num_questions", type="int", low=1,
        help="ask so many (default: all of a file, 600 of a model's own set)", scope="all",
    ),
    Setting(name="dataset_seed", type="int", default=0, help="seed of a model's own set", scope="all"),
    Setting(
        name="max_tokens", type="int", default=256, low=1, help="longest answer where a question has no max_tokens",
        scope="all",
    ),
    Setting(
        name="match", choices=tuple(MATCHES),
        help="loose passes over capitals and punctuation of answers, neither it nor exact minds white space; "
        "number compares the one behind #### (default: exact; number for GSM8K)",
        scope="all",
    ),
    Setting(
        name="context", type="int", low=2, help="tokens of a perplexity window (default: 1024 or the longest)",
        scope="all",
    ),
    Setting(
        name="stride", type="int", low=1, help="tokens from one window to the next (default: half a context)",
        scope="all",
    ),
    Setting(name="speed", type="bool", default=False, help="also measure tokens a second", scope="all"),
    Setting(name="input_len", type="int", default=512, low=1, help="prompt tokens of the speed test", scope="all"),
    Setting(name="output_len", type="int", default=64, low=2, help="generated tokens of the speed test", scope="all"),
    Setting(name="json", help="also write the results to this JSON file", scope="all"),
    Setting(name="markdown", help="also write the table to this Markdown file", scope="all"),
)  # fmt: skip


def run(arguments: list[str], context: CommandContext) -> int:
    settings = context.settings(arguments, scope="engine", extra=SETTINGS)
    material = gather_material(settings, context.plugins.catalog)
    formats = choose_formats(settings, context.plugins)
    work = _plan(settings, material, resolve(formats[0], context.plugins).max_model_len)
    results = _begin(arguments, settings, material, work)
    _write(results, settings)
    for one in formats:
        results.runs.append(_compared(_measure(one, work, context), results))
        gc.collect()  # the model's modules know each other; the next one needs their memory
        _write(results, settings)
    show_evaluation(results, context.console)
    return 0


def _plan(settings: Settings, material: Material, longest: int) -> Work:
    """Raises ``ConfigError`` for what would otherwise come up only once a model is loaded."""
    speed = Lengths(settings["input_len"], settings["output_len"]) if settings["speed"] else None
    windows = (1, 1)
    if material.text:
        windows = choose_windows(settings["context"], settings["stride"], longest)
    return Work(
        questions=material.questions,
        max_tokens=settings["max_tokens"],
        match=material.match,
        text=material.text,
        windows=windows,
        speed=speed,
    )


def _begin(arguments: Sequence[str], settings: Settings, material: Material, work: Work) -> Evaluation:
    baseline = None
    if settings["baseline"]:
        baseline = read_baseline(
            settings["baseline"], questions=material.asked, text=material.read, windows=work.windows
        )
    return Evaluation(
        model=settings["model"] or "the default model",
        command=shlex.join(("lsv", "eval", *arguments)),
        time=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        machine=describe_machine(),
        questions=material.asked,
        text=material.read,
        baseline=baseline,
        runs=[],
    )


def _measure(settings: Settings, work: Work, context: CommandContext) -> Run:
    """One format, in an engine of its own."""
    from lsv import LLM

    with (
        LLM.from_settings(settings, context.plugins, skip_tokenizer_init=not work.needs_text) as llm,
        _progress(settings["quantization"]) as (begin, done),
    ):
        return evaluate(llm, work, begin, done)


def _compared(run: Run, results: Evaluation) -> Run:
    baseline = results.baseline or next(iter(results.runs), None)
    return run if baseline is None else msgspec.structs.replace(run, paired=compare(run, baseline))


@contextmanager
def _progress(name: str | None) -> Iterator[tuple[Any, Any]]:
    """A bar on stderr: a function that says what comes next and of how many parts, and one that moves it."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield (
            lambda what, total: bar.reset(task, description=f"{name or 'none'}: {what}", total=total),
            lambda: bar.advance(task),
        )


def _write(results: Evaluation, settings: Settings) -> None:
    """Written anew after each format, so that what is broken off leaves what it has."""
    if settings["json"]:
        write_result(results, settings["json"])
    if settings["markdown"]:
        try:
            Path(settings["markdown"]).parent.mkdir(parents=True, exist_ok=True)
            Path(settings["markdown"]).write_text(markdown(columns(shown_runs(results))), encoding="utf-8")
        except OSError as cause:
            raise ConfigError(
                f"the table can't be written to {settings['markdown']}: {cause}", param="markdown"
            ) from cause
