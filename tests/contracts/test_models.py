"""The page of models and the table behind ``lsv models`` know every class that the installed transformers has."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lsv_doctor.models.classes import Class, read_classes
from lsv_doctor.models.orders import COLUMNS, Verdict
from lsv_doctor.models.recent import Published, read_recent
from lsv_doctor.models.release import read_release
from lsv_doctor.models.served import Served, read_families

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("models", ROOT / "tools" / "models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


models = load()


def test_the_table_has_every_class_that_generates_text() -> None:
    known = read_classes()
    assert list(models.list_classes(known)) == list(known.values()), "run python tools/models.py --write"


def test_the_page_is_what_the_table_and_the_plugins_say() -> None:
    page = models.page(read_classes())
    assert models.DOCUMENT.read_text(encoding="utf-8") == page, "run python tools/models.py --write"


def test_the_table_was_checked_with_the_newest_release_that_developers_install() -> None:
    constraints = (ROOT / "tests/constraints.txt").read_text(encoding="utf-8")
    (bound,) = re.findall(r"^transformers<(\d+)\.(\d+)$", constraints, re.MULTILINE)
    major, minor = map(int, bound)
    assert read_release() == f"{major}.{minor - 1}", "run lsv models --check and tools/models.py --write RESULTS"


def test_only_verdicts_of_all_classes_renew_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "installed_release", lambda: "7.1")
    one, other = (Class(architecture=name, kind="causal", family="x") for name in "AB")
    results = {name: Verdict(architecture=name, state="runs") for name in "AB"}
    assert models.checked_release([one, other], results) == "7.1"
    assert models.checked_release([one, other], {"A": results["A"]}) == read_release()


def test_well_known_models_are_listed_once_and_in_order() -> None:
    lines = (ROOT / "plugins/doctor/lsv_doctor/models/families.tsv").read_text(encoding="utf-8").splitlines()
    names = [line.partition("\t")[0] for line in lines]
    assert len(set(names)) == len(names) == len(read_families())
    assert all(read_families().values())


def test_every_mapping_for_text_generation_is_listed() -> None:
    from transformers.models.auto import modeling_auto as auto

    found = {one.architecture: one for one in models.list_classes({})}
    for mapped, (_, name) in models.MAPPINGS.items():
        wanted = set(getattr(auto, name).values())
        assert {one.architecture for one in found.values() if mapped in one.mappings} == wanted


def test_a_new_class_has_no_state_and_is_made_by_what_its_checkpoints_hold() -> None:
    found = {one.architecture: one for one in models.list_classes({})}
    assert found["LlamaForCausalLM"] == Class(
        architecture="LlamaForCausalLM", kind="causal", mappings=("causal",), family="llama"
    )
    assert found["GPT2LMHeadModel"].family == "gpt2"
    assert found["Qwen3_5ForCausalLM"].family == "qwen3_5_text"
    assert found["T5ForConditionalGeneration"].kind == "seq2seq"
    gemma = found["Gemma3ForConditionalGeneration"]
    assert (gemma.kind, gemma.family, gemma.mappings) == ("wrapper", "gemma3", ("causal", "image-text", "multimodal"))
    assert found["VoxtralForConditionalGeneration"].mappings == ("seq2seq", "multimodal")


def test_what_a_check_found_goes_into_the_table() -> None:
    llama = Class(architecture="LlamaForCausalLM", kind="causal", family="llama")
    verdict = Verdict(
        architecture="LlamaForCausalLM", state="runs", text_model="decoder", cells={"quantised": "yes", "images": ""},
        reasons={"adapters": "of attention alone"},
    )  # fmt: skip
    (found,) = models.with_results([llama], {"LlamaForCausalLM": verdict})
    assert (found.state, found.text_model, found.cells) == ("runs", "decoder", {"quantised": "yes"})
    assert found.notes == "adapters: of attention alone"


def test_the_share_of_decoders_leaves_out_what_no_check_can_ask() -> None:
    drawn: dict[str, tuple[Any, Any]] = {
        "A": ("runs", "decoder"), "B": ("refused", "decoder"), "C": ("untried", "decoder"), "D": ("", ""),
        "E": ("runs", "encoder-decoder"), "F": ("untried", "other"),
    }  # fmt: skip
    classes = {
        name: Class(
            architecture=name, kind="wrapper", mappings=("multimodal",), family="x", state=state, text_model=text
        )
        for name, (state, text) in drawn.items()
    }
    line = models.shares(classes).splitlines()[-1]
    assert "2 of 6 classes serve text (33%)" in line
    assert "1 of 2 (50%) of those that can be built and whose text model is a decoder" in line
    assert "1 refused" in line
    assert "2 that no check can ask for text alone" in line
    assert "1 without a check" in line


def test_a_cell_without_a_run_says_not_tried() -> None:
    one = Served(architecture="A", way="native", text="yes", cells={"ranks": "no", "images": "none", "mtp": "wrong"})
    cells = [cell.strip() for cell in models.line(one).split("|")[4:-2]]
    named = dict(zip(("text", *COLUMNS), cells, strict=True))
    assert named == {
        "text": "yes", "images": "–", "sound": "not tried", "video": "not tried", "quantised": "not tried",
        "ranks": "no", "adapters": "not tried", "mtp": "wrong",
    }  # fmt: skip


def test_families_of_the_year_have_the_state_of_their_class() -> None:
    served = [
        Served(architecture="A", way="generic", text="yes"), Served(architecture="B", way="no", why="it is strange"),
        Served(architecture="C", way="native"),
    ]  # fmt: skip
    published = [Published("One", name, name) for name in "ABC"] + [Published("Two", "Anew", "A")]
    rows = models.recent(published, served).splitlines()[6:]
    assert [row.split("| ")[3].removesuffix(" |") for row in rows] == [
        "generic, checked", "not served: it is strange", "native, not tried", "as A: generic, checked",
    ]  # fmt: skip


def test_families_of_the_year_name_classes() -> None:
    published = list(read_recent())
    assert len({one.family for one in published}) == 40
    names = [one.architecture for one in published]
    assert len(set(names)) == len(names)
    renamed = {one.named for one in published if one.named != one.architecture}
    assert renamed <= {one.architecture for one in models.list_classes({})}
