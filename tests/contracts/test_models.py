"""The page of models and the table behind ``lsv models`` know every class that the installed transformers has."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from lsv_doctor.models.classes import Class, read_classes
from lsv_doctor.models.orders import Verdict
from lsv_doctor.models.release import read_release
from lsv_doctor.models.served import read_families

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
    media = Class(architecture="C", kind="causal", family="x", state="media")
    results = {name: Verdict(architecture=name, state="runs") for name in "AB"}
    assert models.checked_release([one, other, media], results) == "7.1"
    assert models.checked_release([one, other, media], {"A": results["A"]}) == read_release()


def test_well_known_models_are_listed_once_and_in_order() -> None:
    lines = (ROOT / "plugins/doctor/lsv_doctor/models/families.tsv").read_text(encoding="utf-8").splitlines()
    names = [line.partition("\t")[0] for line in lines]
    assert len(set(names)) == len(names) == len(read_families())
    assert all(read_families().values())


def test_a_new_class_is_unchecked_and_one_with_media_names_its_text_half() -> None:
    found = {one.architecture: one for one in models.list_classes({})}
    assert found["LlamaForCausalLM"] == Class(architecture="LlamaForCausalLM", kind="causal", family="llama")
    assert found["GPT2LMHeadModel"].family == "gpt2"
    assert found["Qwen3_5ForCausalLM"].family == "qwen3_5_text"
    assert found["T5ForConditionalGeneration"].kind == "seq2seq"
    assert found["Gemma3ForConditionalGeneration"].state == "media"
    assert "its text half is Gemma3ForCausalLM" in found["Gemma3ForConditionalGeneration"].detail


def test_what_a_check_found_goes_into_the_table() -> None:
    llama = Class(architecture="LlamaForCausalLM", kind="causal", family="llama")
    verdict = Verdict(architecture="LlamaForCausalLM", state="runs", quantised=True)
    (found,) = models.with_results([llama], {"LlamaForCausalLM": verdict})
    assert (found.state, found.quantised, found.parallel) == ("runs", True, False)
