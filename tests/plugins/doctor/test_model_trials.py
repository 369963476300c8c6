"""What ``lsv models --check`` records of a class besides its text, and that each of these runs can fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lsv_base.errors import ConfigError
from lsv_doctor.models import trials
from lsv_doctor.models.check import Known, _compare, _prepare
from lsv_doctor.models.orders import COLUMNS, Order, Verdict
from lsv_doctor.models.trials import Finding, Subject, adapters, further, try_all


def made(order: Order, folder: Path) -> Subject:
    """A checkpoint whose text is right."""
    known = Known()
    subject, _ = _prepare(order, folder, known)
    assert _compare(subject, known) == ""
    return subject


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return made(Order("LlamaForCausalLM", "llama"), tmp_path_factory.mktemp("llama"))


def take(subject: Subject, monkeypatch: pytest.MonkeyPatch, *inputs: str) -> None:
    """Have the class take more than text."""
    monkeypatch.setattr(subject, "order", msgspec.structs.replace(subject.order, wraps=True))
    monkeypatch.setattr(subject.model, "input_modalities", inputs, raising=False)


def test_a_text_half_takes_text_alone(llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama.model, "input_modalities", ("image", "text"), raising=False)
    assert llama.inputs == ("text",)


def test_a_column_without_a_run_is_not_tried_and_one_that_the_class_lacks_is_none(
    llama: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "TRIALS", {})
    take(llama, monkeypatch, "image", "text")
    cells, reasons = try_all(llama)
    assert cells == dict.fromkeys(COLUMNS, "") | {"images": "no", "sound": "none", "video": "none"}
    assert reasons == {"images": "lsv has no processor for it"}


def test_input_that_lsv_prepares_is_not_tried_without_a_run(llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    config = msgspec.structs.replace(llama.config, architecture="Qwen2VLForConditionalGeneration")
    monkeypatch.setattr(llama, "config", config)
    take(llama, monkeypatch, "image", "audio")
    monkeypatch.setattr(trials, "TRIALS", {})
    cells, _ = try_all(llama)
    assert (cells["images"], cells["sound"]) == ("", "no")


def test_a_new_run_is_a_line_of_the_table(llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "TRIALS", {"images": lambda subject: Finding("yes")})
    take(llama, monkeypatch, "image", "text")
    assert try_all(llama)[0]["images"] == "yes"


@pytest.mark.parametrize(
    ("error", "cell"),
    [(ConfigError("it hums"), "no"), (ValueError("it hums"), "wrong"), (trials.Unable("it hums"), "")],
)
def test_an_error_says_what_became_of_a_run(
    error: Exception, cell: str, llama: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(subject: Subject) -> Finding:
        raise error

    monkeypatch.setattr(trials, "TRIALS", {"ranks": fail})
    cells, reasons = try_all(llama)
    assert cells["ranks"] == cell
    assert "it hums" in reasons["ranks"]


def test_a_verdict_fails_for_any_wrong_cell() -> None:
    assert Verdict(architecture="A", state="runs", cells={"adapters": "wrong"}).failed
    assert Verdict(architecture="A", state="wrong").failed
    assert not Verdict(architecture="A", state="refused", cells={"adapters": "no"}).failed


def test_an_adapter_that_is_merged_otherwise_is_wrong(llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    right = adapters._merged

    @contextmanager
    def halve(modules: Any, pairs: Any) -> Iterator[None]:
        with right(modules, {name: (a / 2, b) for name, (a, b) in pairs.items()}):
            yield

    assert adapters.try_adapters(llama) == Finding("yes")
    monkeypatch.setattr(adapters, "_merged", halve)
    found = adapters.try_adapters(llama)
    assert found.cell == "wrong"
    assert "log probability" in found.why


def test_an_adapter_leaves_the_reference_as_it_was(llama: Subject) -> None:
    before = {name: tensor.clone() for name, tensor in llama.model.state_dict().items()}
    adapters.try_adapters(llama)
    assert all(tensor.equal(before[name]) for name, tensor in llama.model.state_dict().items())


def test_adapters_change_what_a_text_meets_and_no_tower(tmp_path: Path) -> None:
    subject = made(Order("LlavaForConditionalGeneration", "llava", wraps=True), tmp_path)
    names = adapters._met(subject)
    assert "model.language_model.layers.0.self_attn.q_proj" in names
    assert not any("vision" in name or "projector" in name or "lm_head" in name for name in names)


def test_an_adapter_of_attention_alone_is_recorded_as_that(llama: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    right = adapters._try

    def refuse_mlps(subject: Subject, modules: Any) -> Finding:
        if any("mlp" in name for name in modules):
            raise ConfigError("not of an MLP")
        return right(subject, modules)

    monkeypatch.setattr(adapters, "_try", refuse_mlps)
    found = adapters.try_adapters(llama)
    assert found == Finding("yes", "of attention alone")


def test_an_adapter_leaves_out_what_latent_attention_has_no_slot_for() -> None:
    names = ("a.self_attn.q_proj", "a.self_attn.kv_b_proj", "a.self_attn.other", "a.mlp.up_proj", "a.mlp.other")
    modules: Any = dict.fromkeys(names)
    chosen = [(list(some), which) for some, which in adapters._choices(modules)]
    assert [which for _, which in chosen][::2] == [
        "",
        "of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj alone",
    ]
    assert [len(some) for some, _ in chosen] == [5, 4, 2, 2]
    assert not any("kv_b_proj" in some for some, _ in chosen[1:])


@pytest.mark.parametrize(("architecture", "family"), [
    ("Glm4MoeForCausalLM", "glm4_moe"),
    pytest.param("DeepseekV3ForCausalLM", "deepseek_v3", marks=pytest.mark.slow),
    pytest.param("Qwen3NextForCausalLM", "qwen3_next", marks=pytest.mark.slow),
    pytest.param("Qwen3_5ForCausalLM", "qwen3_5_text", marks=pytest.mark.slow),
])  # fmt: skip
def test_layers_for_further_tokens_draft(architecture: str, family: str, tmp_path: Path) -> None:
    assert further.try_further(made(Order(architecture, family), tmp_path)) == Finding("yes")


def test_classes_without_such_layers_have_none_and_those_whose_layers_are_passed_over_say_no(
    llama: Subject, tmp_path: Path
) -> None:
    assert further.try_further(llama) == Finding("none")
    subject = made(Order("MiniMaxM2ForCausalLM", "minimax_m2"), tmp_path)
    subject.model._keys_to_ignore_on_load_unexpected = [r"^mtp.*"]
    assert further.try_further(subject) == Finding("no", "such layers of its checkpoints are passed over")


def test_drafts_that_change_an_answer_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = made(Order("Glm4MoeForCausalLM", "glm4_moe"), tmp_path)
    right = subject.reference.log_probabilities
    monkeypatch.setattr(subject.reference, "log_probabilities", lambda ids, *given: right([ids[0], *ids[:-1]]))
    assert further.try_further(subject).cell == "wrong"
