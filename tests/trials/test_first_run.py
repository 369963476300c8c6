"""The ladder of a first run on hardware: which rungs there are, what is compared, what the report says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from first_run.checks import Check, carry_out
from first_run.ladder import REFERENCE, Outcome, Rung, climb, compare, rungs
from first_run.report import write
from lsv.plugins import load
from lsv.resolve.hardware import load_platform

RIGHT = {"tokens": [[1, 2, 3], [4, 5, 6]], "margins": [[0.5, 0.2, 0.5], [0.5, 1e-5, 0.5]]}


def test_answers_may_part_at_a_tie_alone() -> None:
    assert compare(RIGHT, RIGHT) == "ok"
    assert compare({"tokens": [[1, 2, 3], [4, 7, 9]]}, RIGHT) == "ok"
    wrong = compare({"tokens": [[1, 9, 3], [4, 5, 6]]}, RIGHT)
    assert wrong == "answer 0 differs from the CPU's at token 1: 9 instead of 2, which is likelier by 0.2"


def test_each_rung_adds_one_thing() -> None:
    catalog = load().catalog
    platform = load_platform("cuda", catalog, emulate=True)
    found = list(rungs(platform, catalog, {"emulate": True}))
    assert [rung.adds for rung in found][:3] == [
        "the device, torch-paged attention, every op in torch", "kernels for ops", "graphs or compiled steps",
    ]  # fmt: skip
    assert all(rung.options["platform"] == "cuda" and rung.options["emulate"] for rung in found)
    assert found[-1].options["tensor_parallel_size"] == 2


def test_a_backend_of_16_bit_floats_alone_is_tried_in_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close answers then part at wider ties."""
    catalog = load().catalog
    platform = load_platform("cuda", catalog, emulate=True)
    monkeypatch.setattr(type(platform), "attention", ("flashinfer-emulated", "torch-paged"))
    found = [rung.options for rung in rungs(platform, catalog, {}) if "attention_backend" in rung.options]
    dtypes = {options["attention_backend"]: options["dtype"] for options in found}
    assert dtypes == {"torch-paged": "float32", "flashinfer-emulated": "float16"}
    assert compare({"tokens": [[1, 9, 3], [4, 5, 6]]}, RIGHT, 0.3) == "ok"


def test_a_refusal_is_told() -> None:
    outcome = climb(Rung("nothing", {"platform": "none"}), None)
    assert not outcome.holds
    assert outcome.verdict.startswith("refused: ")


def test_the_lowest_rung_of_an_emulation() -> None:
    reference = climb(Rung("the CPU", REFERENCE), None)
    catalog = load().catalog
    lowest = next(iter(rungs(load_platform("cuda", catalog, emulate=True), catalog, {"emulate": True})))
    assert climb(lowest, reference.found).verdict == "ok"


def test_the_report_shows_what_went_wrong(tmp_path: Path) -> None:
    outcome = Outcome(Rung("kernels", {}), "ended with 1 and no answer", tail="RuntimeError: no kernel image")
    done = carry_out(Check("a look", (sys.executable, "-c", "print('found it'); raise SystemExit(3)"), 60), tmp_path)
    slow = carry_out(Check("a wait", (sys.executable, "-c", "import time; time.sleep(60)"), 0.2), tmp_path)
    assert (done.code, slow.code) == (3, None)
    text = write(tmp_path, "a card", [outcome], [done, slow]).read_text()
    assert "| kernels | ended with 1 and no answer |" in text
    assert "RuntimeError: no kernel image" in text
    assert "| a look | ended with 3 |" in text
    assert "found it" in text
    assert "| a wait | took too long |" in text
    assert (tmp_path / "report.json").exists()
