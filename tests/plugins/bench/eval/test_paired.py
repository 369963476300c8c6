"""Two runs question by question, and McNemar's exact test against values computed elsewhere."""

from __future__ import annotations

import io
import math
from typing import Any

import msgspec
import pytest
from rich.console import Console

from lsv_bench.eval.accuracy import Answer, summarise
from lsv_bench.eval.paired import compare, compare_texts, mcnemar
from lsv_bench.eval.perplexity import Perplexity
from lsv_bench.eval.result import Evaluation, Run
from lsv_bench.eval.tables import columns, markdown, show_evaluation
from lsv_bench.machine import Machine


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (3, 3, 1.0),
        (5, 0, 0.0625),
        (0, 6, 0.03125),
        (2, 10, 158 / 4096),
        (121, 59, 4.4344449e-06),  # statsmodels.stats.contingency_tables.mcnemar, exact
    ],
)
def test_mcnemar(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == pytest.approx(p, rel=1e-6)
    assert mcnemar(lost, gained) == mcnemar(gained, lost)


def scores(*parts: float) -> Perplexity:
    """Windows of these negative log-likelihoods, ten tokens each."""
    tokens, nll = 10 * len(parts), sum(parts)
    return Perplexity(
        tokens=tokens, bytes=tokens, nll=nll, perplexity=math.exp(nll / tokens), bits_per_byte=1.0, context=8, stride=4,
        parts=parts,
    )  # fmt: skip


def test_the_error_of_a_ratio_is_that_of_the_differences() -> None:
    ratio, error = compare_texts(scores(5.5, 7.5, 3.0), scores(5.0, 8.0, 2.0))
    assert ratio == pytest.approx(math.exp(1.0 / 30))
    assert error == pytest.approx(ratio * 1.96 * math.sqrt(3) * math.sqrt(7 / 12) / 30)
    assert compare_texts(scores(5.5, 9.5), scores(5.0, 9.0))[1] == 0.0
    assert compare_texts(scores(5.5), scores(5.0))[1] is None


def run(right: str, perplexity: float | None = None, **changes: Any) -> Run:
    """A run that got the questions marked ``1`` right; its answers are the marks."""
    answers = [Answer(place=f"q:{n}", text=mark, right=mark == "1") for n, mark in enumerate(right)]
    scored = None
    if perplexity is not None:
        scored = Perplexity(tokens=9, bytes=9, nll=1.0, perplexity=perplexity, bits_per_byte=1.0, context=8, stride=4)
    return Run(
        format="none", dtype="float32", kv_dtype="auto", weight_bytes=1, perplexity=scored,
        accuracy=summarise(answers) if right else None, **changes,
    )  # fmt: skip


def test_pairs_are_counted_by_question() -> None:
    found = compare(run("1110x", 2.0), run("1111y", 1.6))
    assert (found.kept, found.gained, found.lost, found.same, found.p) == (75.0, 0, 1, 3, 1.0)
    assert found.perplexity_ratio == 1.25
    found = compare(run("0111111000"), run("1000001000"))
    assert (found.kept, found.gained, found.lost) == (300.0, 5, 1)
    assert found.p == pytest.approx(14 / 64)


def test_what_one_of_them_lacks_is_not_compared() -> None:
    found = compare(run("", 2.0), run("1", 2.0))
    assert (found.kept, found.gained, found.p, found.perplexity_ratio) == (None, None, None, 1.0)
    assert compare(run("1"), run("1", 2.0)).perplexity_ratio is None
    assert compare(run("1"), run("0")).kept is None


def test_no_figure_is_lost_on_a_narrow_terminal() -> None:
    shown = io.StringIO()
    runs = [run("1110", 2.0), run("1111", 1.6)]
    runs[0] = msgspec.structs.replace(runs[0], format="int4_of_some_kind", paired=compare(*runs))
    machine = Machine(cpu="", cores=1, instruction_sets=(), memory_gib=1.0, system="", versions={})
    show_evaluation(
        Evaluation(model="m", command="", time="", machine=machine, runs=runs), Console(file=shown, width=80)
    )
    for text in ("75.0%", "1.2500", "perplexity", "gained", "lost", " p\n", "int4_of_some_kind"):
        assert text in shown.getvalue()
    table = markdown(columns(runs)).splitlines()
    assert table[0].split(" | ")[5:] == ["accuracy", "kept", "gained", "lost", "p |"]
    assert table[2] == "| int4_of_some_kind | 0.00 | 2.0000 | 1.2500 | 1.0000 | 75.0% | 75.0% | 0 | 1 | 1 |"
