"""Evaluations as tables: for the terminal and in Markdown, a row for each format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from lsv_bench.eval.paired import Paired
from lsv_bench.eval.result import Evaluation, Run
from lsv_bench.eval.speed import STREAMS

if TYPE_CHECKING:
    from rich.console import Console

Show = Callable[[Run], str]

_MIB = 1 << 20
_NOTHING = "-"


def columns(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Heading → a cell for each run; columns without a figure are left out."""
    found = {heading: [show(run) for run in runs] for heading, show in _COLUMNS.items()}
    return {heading: cells for heading, cells in found.items() if set(cells) != {_NOTHING}}


def markdown(table: Mapping[str, Sequence[str]]) -> str:
    """Columns by heading as a Markdown table, ending in a new line; all but the first are numbers."""
    lines = [list(table), ["---", *["---:"] * (len(table) - 1)], *map(list, zip(*table.values(), strict=True))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def aligned(table: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines of plain text. A narrow terminal folds them; a table that is fitted to it would cut figures off."""
    found = [[heading, *cells] for heading, cells in table.items()]
    widths = [max(map(len, cells)) for cells in found]
    padded = [[cell.rjust(width) for cell in cells] for cells, width in zip(found, widths, strict=True)]
    padded[0] = [cell.ljust(widths[0]) for cell in found[0]]
    return ["  ".join(row) for row in zip(*padded, strict=True)]


def shown_runs(evaluation: Evaluation) -> list[Run]:
    """The rows of a table: an earlier baseline goes first."""
    return [*([evaluation.baseline] if evaluation.baseline else []), *evaluation.runs]


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """The table of formats; the categories of the questions where there is one format only."""
    from rich.table import Table

    runs = shown_runs(evaluation)
    console.print(f"{evaluation.model}: {describe(evaluation)}\n", soft_wrap=True, markup=False)
    for line in aligned(columns(runs)):
        console.print(line, soft_wrap=True, markup=False)
    if len(runs) == 1 and runs[0].accuracy is not None and runs[0].accuracy.categories:
        categories = Table("category", "right", "of")
        for name, (right, total) in runs[0].accuracy.categories.items():
            categories.add_row(name, str(right), str(total))
        console.print(categories)


def describe(evaluation: Evaluation) -> str:
    """What was measured on, in a line."""
    parts = []
    if evaluation.questions is not None:
        parts.append(f"{evaluation.questions.size} questions of {evaluation.questions.name}")
    if evaluation.text is not None:
        parts.append(f"{evaluation.text.size:,} bytes of {evaluation.text.name}")
    return "; ".join(parts) or "speed"


def _perplexity(run: Run) -> str:
    return f"{run.perplexity.perplexity:.4f}" if run.perplexity else _NOTHING


def _bits(run: Run) -> str:
    return f"{run.perplexity.bits_per_byte:.4f}" if run.perplexity else _NOTHING


def _accuracy(run: Run) -> str:
    found = run.accuracy
    return f"{found.accuracy:.1%}" if found else _NOTHING


def _by_length(run: Run) -> str:
    return _share(run.accuracy.by_length if run.accuracy else None)


def _flexible(run: Run) -> str:
    return _share(run.accuracy.flexible if run.accuracy else None)


def _share(value: float | None) -> str:
    return _number(value, ".1%") or _NOTHING


def _paired(write: Callable[[Paired], str | None]) -> Show:
    return lambda run: (write(run.paired) or _NOTHING) if run.paired else _NOTHING


def _ratio(paired: Paired) -> str | None:
    error = _number(paired.ratio_error, ".4f")
    ratio = _number(paired.perplexity_ratio, ".4f")
    return f"{ratio} ±{error}" if ratio and error else ratio


def _number(value: float | None, form: str, unit: str = "") -> str | None:
    return None if value is None else f"{value:{form}}{unit}"


def _speed(figure: str) -> Show:
    return lambda run: f"{run.speed[figure]:,.1f}" if figure in run.speed else _NOTHING


_COLUMNS: dict[str, Show] = {
    "format": lambda run: run.format,
    "weights MiB": lambda run: f"{run.weight_bytes / _MIB:,.2f}",
    "perplexity": _perplexity,
    "ratio": _paired(_ratio),
    "bits per byte": _bits,
    "accuracy": _accuracy,
    "by length": _by_length,
    "flexible": _flexible,
    "kept": _paired(lambda paired: _number(paired.kept, ".1f", "%")),
    "gained": _paired(lambda paired: _number(paired.gained, "d")),
    "lost": _paired(lambda paired: _number(paired.lost, "d")),
    "p": _paired(lambda paired: _number(paired.p, ".3g")),
    "1 stream tok/s": _speed("decode_tokens_per_s"),
    f"{STREAMS} streams tok/s": _speed(f"decode_{STREAMS}_tokens_per_s"),
    "prefill tok/s": _speed("prefill_tokens_per_s"),
}
