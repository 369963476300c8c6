"""``lsv models``: what it lists, and that its check tells a right class from a wrong one and from one that crashes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import lsv_models.plugin
from lsv.cli import main
from lsv_base.errors import ConfigError
from lsv_doctor.models import release, runs
from lsv_doctor.models.check import check
from lsv_doctor.models.classes import Class, choose, read_classes, write_classes
from lsv_doctor.models.comparing import find_difference
from lsv_doctor.models.orders import FAILED, Order, Verdict
from lsv_doctor.models.reference import Reference
from lsv_doctor.models.release import read_release
from lsv_doctor.models.results import append, read_results
from lsv_doctor.models.served import list_served, share
from lsv_doctor.models.tiny import tiny_config
from lsv_testing.catalog import catalog_of

SAMPLE = 3


def made(architecture: str, state: Any, detail: str = "") -> Class:
    return Class(architecture=architecture, kind="causal", family="x", state=state, detail=detail)


# What it lists


def test_every_class_is_listed_with_the_way_it_runs() -> None:
    classes = {one.architecture: one for one in (
        made("LlamaForCausalLM", "refused", "of old"), made("AForCausalLM", "runs", "odd"),
        made("BForCausalLM", "refused", "it is strange"), made("CForCausalLM", ""),
        made("EForCausalLM", "wrong", "position 3"), made("Qwen3ForCausalLM", "crash", "out of luck"),
        made("DForCausalLM", "untried", "eyes"), made("DogeForCausalLM", "runs", "odd"),
    )}  # fmt: skip
    served = {one.architecture: one for one in list_served(catalog_of(lsv_models.plugin), classes)}
    note = next(offer.note for offer in lsv_models.plugin.lsv_models() if offer.name == "doge")
    ways = {name: (served[name].way, served[name].why) for name in classes}
    assert ways == {
        "LlamaForCausalLM": ("native", ""),
        "AForCausalLM": ("generic", "odd"),
        "BForCausalLM": ("no", "it is strange"),
        "CForCausalLM": ("no", "no check has run"),
        "DogeForCausalLM": ("generic", f"{note}; odd"),
        "DForCausalLM": ("no", "no check can run: eyes"),
        "EForCausalLM": ("no", "it is taken, and its answers are wrong: position 3"),
        "Qwen3ForCausalLM": ("no", "it ends in an error: out of luck"),
    }
    assert "generate" in served["AForCausalLM"].tasks
    assert str(share(list(served.values()))).startswith("2 of 8 ")
    (omni,) = (one for one in list_served(catalog_of(), classes) if one.architecture.startswith("Qwen3OmniMoeFor"))
    assert (omni.way, omni.models) == ("no", "Qwen3-Omni-30B-A3B")
    assert "no plugin here offers it" in omni.why
    assert "float16" in served["Gemma2ForCausalLM"].unstable


def test_the_command_lists_all_or_those_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["models", "--json"]) == 0
    names = {one["architecture"] for one in json.loads(capsys.readouterr().out)}
    assert {"LlamaForCausalLM", "MambaForCausalLM", "T5ForConditionalGeneration", "InternVLChatModel"} <= names
    assert main.main(["models", "--json", "codegeex4"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["architecture"] == "ChatGLMForConditionalGeneration"
    assert main.main(["models", "of-the-future"]) != 0
    assert "of-the-future" in capsys.readouterr().err


def test_classes_are_chosen_by_class_or_family() -> None:
    classes = read_classes()
    assert [one.architecture for one in choose(classes, ["mamba", "LlamaForCausalLM"])] == [
        "MambaForCausalLM",
        "LlamaForCausalLM",
    ]
    assert len(choose(classes, [])) == len(classes)
    with pytest.raises(ConfigError, match="LlamaForCausalLM"):
        choose(classes, ["LamaForCausalLM"])


def test_the_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = Class(
        architecture="A", kind="wrapper", mappings=("causal", "multimodal"), family="x", text_model="decoder",
        state="runs", cells={"ranks": "no", "mtp": "none"},
    )  # fmt: skip
    classes = [whole, made("B", "refused", "a\nb\tc")]
    write_classes(classes, "5.24", tmp_path / "classes.tsv")
    found = read_classes(tmp_path / "classes.tsv")
    assert found["A"] == classes[0]
    assert found["B"].detail == "a b c"
    assert read_release(tmp_path / "classes.tsv") == "5.24"
    (tmp_path / "classes.tsv").write_text("architecture\tkind\n")
    with pytest.raises(ConfigError, match="must begin with a line"):
        read_release(tmp_path / "classes.tsv")


@pytest.mark.parametrize("installed", ["5.23.9", "5.24.0", "5.24.3"])
def test_a_release_that_is_not_newer_gives_no_warning(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "version", lambda name: installed)
    monkeypatch.setattr(release, "read_release", lambda: "5.24")
    assert release.warn() == ""


@pytest.mark.parametrize(("installed", "said"), [("5.25.0", "5.25"), ("5.100.0", "5.100"), ("6.0rc1", "6.0")])
def test_a_newer_release_gives_a_warning(
    installed: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(release, "version", lambda name: installed)
    monkeypatch.setattr(release, "read_release", lambda: "5.24")
    assert f"transformers {said} is newer than 5.24" in release.warn()
    assert main.main(["models"]) == 0
    assert f"{said} is newer than 5.24" in " ".join(capsys.readouterr().out.split())


def test_results_grow_and_the_last_one_counts(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    append(file, [Verdict(architecture="A", state="wrong"), Verdict(architecture="B", state="runs")])
    append(file, [Verdict(architecture="A", state="runs", met=("prefix",))])
    assert {name: one.state for name, one in read_results(file).items()} == {"A": "runs", "B": "runs"}
    file.write_text("what?\n")
    with pytest.raises(ConfigError, match="results"):
        read_results(file)


# How it tells right from wrong


def answer(**changes: Any) -> Any:
    """Greedy tokens of ``expected`` below, with the log probabilities of two tokens at each position."""
    given = {"prompt_token_ids": [1, 2], "tokens": [0, 1], "shift": 0.0, "error": None, **changes}
    wanted = expected([*given["prompt_token_ids"], *given["tokens"]][:-1])
    shown = [{token: SimpleNamespace(logprob=float(row[token]) + given["shift"]) for token in (0, 3)} for row in wanted]
    start = len(given["prompt_token_ids"])
    return SimpleNamespace(
        prompt_token_ids=given["prompt_token_ids"], prompt_logprobs=[None, *shown[: start - 1]], error=given["error"],
        outputs=[SimpleNamespace(token_ids=given["tokens"], logprobs=shown[start - 1 :])],
        encoder_prompt_token_ids=None,
    )  # fmt: skip


def expected(ids: Any, encoder: Any = (), start: int = 0) -> torch.Tensor:
    """A model that says 0, 1, 2 … by position."""
    return torch.log_softmax(4.0 * torch.eye(4)[[(position - 1) % 4 for position in range(len(ids))]], dim=-1)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({}, ""),
        ({"shift": 2e-4}, ""),
        ({"shift": 1e-3}, "position 0: log probability"),
        ({"shift": float("nan")}, "log probability of 0 is nan"),
        ({"tokens": [0, 2]}, "token 2 is 4.0e.00 less likely"),
        ({"error": "no room"}, "fails: no room"),
    ],
)
def test_a_difference_is_found(changes: dict[str, Any], difference: str) -> None:
    found = find_difference([answer(**changes)], expected)
    assert re.search(difference, found) if difference else found == ""


@pytest.mark.parametrize(("logprob", "difference"), [(-3.4e38, ""), (-20.0, "there is a token 4, of 4")])
def test_a_token_that_the_reference_lacks_may_never_be_sampled(logprob: float, difference: str) -> None:
    given = answer()
    given.prompt_logprobs[1][4] = SimpleNamespace(logprob=logprob)
    found = find_difference([given], expected)
    assert found.endswith(difference) if difference else found == ""


def test_what_follows_padding_is_left_out() -> None:
    assert find_difference([answer(tokens=[0, 2])], expected, {0}) == ""


def test_a_tiny_checkpoint_has_a_layer_of_each_kind() -> None:
    jamba, cohere = tiny_config("jamba"), tiny_config("cohere2")
    assert set(jamba.layer_types) == {"linear_attention", "full_attention"}
    assert set(cohere.layer_types) == {"sliding_attention", "full_attention"}
    assert jamba.vocab_size == 320
    assert tiny_config("deepseek_v3").num_key_value_heads == 4


@torch.inference_mode()
def test_a_model_whose_tokens_see_later_ones_is_asked_as_generate_asks() -> None:
    class Counting(torch.nn.Module):
        """Of any token comes the one that is numbered by how many there are, as long as it is told so."""

        def forward(self, input_ids: torch.Tensor, use_cache: bool = False, told: bool = True) -> Any:
            rows = torch.full(input_ids.shape, input_ids.shape[1] if told else 0)
            return SimpleNamespace(logits=torch.nn.functional.one_hot(rows, 100).float())

        def prepare_inputs_for_generation(self, ids: torch.Tensor, use_cache: bool) -> dict[str, Any]:
            return {"input_ids": torch.cat((ids, ids[:, :1]), dim=1)}

    model: Any = Counting()
    assert Reference(model).log_probabilities([5, 6, 7]).argmax(-1).tolist() == [2, 3, 4]


def test_a_right_class_passes_with_all_that_an_engine_does(tmp_path: Path) -> None:
    verdict = check(Order("LlamaForCausalLM", "llama"), tmp_path)
    assert (verdict.state, verdict.detail) == ("runs", "")
    assert set(verdict.met) == {"prefix", "preemption"}
    assert verdict.text_model == "decoder"
    assert {column: cell for column, cell in verdict.cells.items() if cell != "none"} == {
        "quantised": "yes", "ranks": "yes", "adapters": "yes",
    }  # fmt: skip


def test_a_wrong_class_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Reference.log_probabilities
    monkeypatch.setattr(Reference, "log_probabilities", lambda self, ids, *given: right(self, [ids[0], *ids[:-1]]))
    verdict = check(Order("GPT2LMHeadModel", "gpt2"), tmp_path)
    assert verdict.state == "wrong"
    assert "log probability" in verdict.detail


def test_a_class_without_a_checkpoint_is_untried(tmp_path: Path) -> None:
    verdict = check(Order("ForCausalLMOfTheFuture", "llama"), tmp_path)
    assert verdict.state == "untried"


STAND_IN = """
import sys, time, os
from lsv_base.processes.lifeline import connect
from lsv_doctor.models.orders import FAILED, Order, Verdict
channel = connect(int(sys.argv[1]), int(sys.argv[2]), Order)
while True:
    try:
        order = channel.receive()
    except EOFError:
        break
    if order.family == "ends":
        print("out of luck", flush=True)
        os._exit(3)
    if order.family == "hangs":
        time.sleep(60)
    channel.send(Verdict(architecture=order.architecture, state="runs"))
"""


def test_a_class_that_ends_its_process_or_hangs_does_not_end_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stand_in_checker.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(runs, "_MODULE", "stand_in_checker")
    monkeypatch.setattr(runs, "_FIRST_SECONDS", 20.0)
    found: dict[str, Verdict] = {}
    orders = [Order("A", "runs"), Order("B", "ends"), Order("C", "runs"), Order("D", "hangs"), Order("E", "runs")]
    runs.check_all(orders, lambda one: found.update({one.architecture: one}), jobs=1, seconds=2.0)
    assert {name: one.state for name, one in found.items()} == {
        "A": "runs", "B": "crash", "C": "runs", "D": "crash", "E": "runs",
    }  # fmt: skip
    assert "exit code 3: out of luck" in found["B"].detail
    assert "no answer" in found["D"].detail


@pytest.mark.parametrize("given", ["--resume", "--results x", "--check --resume", "--check nobody"])
def test_options_that_mean_nothing_are_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["models", *given.split()]) != 0
    assert next(one for one in ("resume", "results", "nobody") if one in given) in capsys.readouterr().err


# The classes themselves


def failures(classes: list[Class], jobs: int) -> dict[str, str]:
    """Those that are wrong or crash, those that used to run and are refused now, and those with a wrong cell that the
    table does not have as wrong: what is wrong of each.
    """
    found: list[Verdict] = []
    runs.check_all([one.order for one in classes], found.append, jobs=jobs)
    before = {one.architecture: one for one in classes}
    return {
        one.architecture: f"{one.state}: {one.detail} {dict(one.reasons)}"
        for one in found
        if one.state in FAILED
        or (before[one.architecture].state == "runs" and one.state != "runs")
        or any(
            cell == "wrong" and before[one.architecture].cells.get(column) != "wrong"
            for column, cell in one.cells.items()
        )
    }


def test_some_classes_equal_transformers() -> None:
    """The same ones on every day, so that no run fails for the date."""
    running = [one for one in read_classes().values() if one.state == "runs"]
    chosen = running[:: len(running) // SAMPLE][:SAMPLE]
    assert failures(chosen, jobs=1) == {}, f"tried {', '.join(one.architecture for one in chosen)}"


@pytest.mark.slow
@pytest.mark.row("F-696")
@pytest.mark.timeout(3600)
def test_all_classes_equal_transformers() -> None:
    assert failures(list(read_classes().values()), jobs=2) == {}
