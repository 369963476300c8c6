"""``lsv models --check`` of classes that wrap a text model: their tiny checkpoints, and which part answers a text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING

from lsv_doctor.models import check as checking
from lsv_doctor.models.check import check
from lsv_doctor.models.classes import Class, read_classes
from lsv_doctor.models.orders import Order
from lsv_doctor.models.prompts import draw, make_prompts
from lsv_doctor.models.reference import Reference
from lsv_doctor.models.tiny import make_model
from lsv_doctor.models.trials import images
from lsv_doctor.models.wrappers import config_of, offer_blind_towers, tiny_wrapper, wraps
from lsv_doctor.models.wrappers.halves import NO_TEXT, kind_of, language_model

WRAPPERS = [one for one in read_classes().values() if one.kind == "wrapper" and one.family not in NO_TEXT]
SQUARE = ("deepseek_ocr2", "unlimited_ocr")
"""Their classes divide the width by the heads."""
EQUAL_HEADS = ("unlimited_ocr",)
"""Its class has as many heads of keys as of queries."""


def text_of(one: Class) -> dict[str, Any]:
    config: Any = config_of(one.order).get_text_config()
    return dict(config.to_dict())


def test_most_classes_have_a_tiny_checkpoint() -> None:
    assert len(WRAPPERS) > 100


def test_no_shape_of_a_text_half_is_square() -> None:
    """A transposed matrix, or keys taken for queries, must not fit by chance."""
    for one in WRAPPERS:
        usual: Any = CONFIG_MAPPING[one.family]().get_text_config().to_dict()
        text = text_of(one)
        heads, latent = text.get("num_attention_heads"), "kv_lora_rank" in text
        if usual.get("head_dim") and not latent and one.family not in SQUARE:
            assert heads * text["head_dim"] != text["hidden_size"], one.architecture
        if text.get("num_key_value_heads") and not latent and one.family not in EQUAL_HEADS:
            assert text["num_key_value_heads"] != heads, one.architecture
        others = {value for key, value in text.items() if type(value) is int and "vocab_size" not in key}
        assert text["vocab_size"] not in others, one.architecture


def test_no_prompt_has_a_mark_of_an_item() -> None:
    prompts = list(make_prompts(encodes=False))
    tokens = {token for prompt in prompts for token in prompt["prompt_token_ids"]}
    for one in WRAPPERS:
        config = config_of(one.order).to_dict()
        named = (value for key, value in config.items() if key.endswith(("_token_id", "_token_index")))
        marks = {value for value in named if type(value) is int}
        assert not marks & tokens, one.architecture


@pytest.mark.slow
@pytest.mark.parametrize("one", WRAPPERS, ids=lambda one: one.architecture)
def test_every_tiny_checkpoint_answers_a_text(one: Class) -> None:
    offer_blind_towers()
    model = make_model(getattr(transformers, one.architecture), config_of(one.order))
    encoded = draw(9, 1) if kind_of(model.config) == "encoder-decoder" else []
    asked = model if encoded else language_model(model)[0]
    assert Reference(asked).log_probabilities(draw(12, 2), encoded).isfinite().all()


def test_families_that_wrap_are_told_from_those_of_text_alone() -> None:
    assert all(map(wraps, ("llava", "gemma3", "qwen2_5_omni", "chameleon", "git", "evolla")))
    assert not any(map(wraps, ("llama", "t5", "encoder-decoder", "gemma3_text", "t5gemma2")))


def test_a_class_of_the_text_half_has_its_configuration() -> None:
    config = config_of(Order("MllamaForCausalLM", "mllama", wraps=True))
    assert type(config).__name__ == "MllamaTextConfig"


def test_a_tower_is_narrower_than_the_text_and_its_projector_ends_there() -> None:
    config: Any = tiny_wrapper("qwen2_vl")
    tower = config.vision_config.to_dict()
    assert (tower["embed_dim"], tower["hidden_size"], config.text_config.hidden_size) == (48, 48, 80)
    config = tiny_wrapper("glm4v")
    assert config.vision_config.hidden_size < config.text_config.hidden_size


def test_the_language_model_inside_answers_where_the_class_needs_more() -> None:
    class Inside(torch.nn.Module):
        def forward(self, input_ids: Any, use_cache: bool) -> str:
            return "text"

        def get_output_embeddings(self) -> int:
            return 1

    class Wrapper(torch.nn.Module):
        def __init__(self, sees: bool) -> None:
            super().__init__()
            self.sees, self.language_model = sees, Inside()

        def forward(self, input_ids: Any, use_cache: bool) -> str:
            if self.sees:
                raise ValueError("where is the picture?")
            return "text"

    seeing: Any = Wrapper(sees=True)
    asked, why = language_model(seeing)
    assert asked is seeing.language_model
    assert "takes no text alone (ValueError)" in why
    plain: Any = Wrapper(sees=False)
    assert language_model(plain) == (plain, "")
    del seeing.language_model
    with pytest.raises(ValueError, match="picture"):
        language_model(seeing)


@pytest.mark.parametrize(
    ("architecture", "family"),
    [("LlavaForConditionalGeneration", "llava"), ("SmolVLMForConditionalGeneration", "smolvlm")],
)
def test_a_wrapper_passes_for_text_and_for_pictures(architecture: str, family: str, tmp_path: Path) -> None:
    verdict = check(Order(architecture, family, wraps=True), tmp_path)
    assert (verdict.state, verdict.detail, verdict.text_model) == ("runs", "", "decoder")
    assert verdict.cells == {
        "images": "yes", "sound": "none", "video": "none", "quantised": "yes", "ranks": "yes", "adapters": "yes",
        "mtp": "none",
    }  # fmt: skip


def test_pictures_that_are_read_otherwise_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = images._ask

    def ask_in_the_dark(folder: Path, prompts: list[tuple[str, Any]]) -> Any:
        return whole(folder, [(text, shown and shown.point(lambda value: 255 - value)) for text, shown in prompts])

    monkeypatch.setattr(images, "_ask", ask_in_the_dark)
    verdict = check(Order("LlavaForConditionalGeneration", "llava", wraps=True), tmp_path)
    assert verdict.cells["images"] == "wrong"


def test_a_wrong_wrapper_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Reference.log_probabilities
    monkeypatch.setattr(Reference, "log_probabilities", lambda self, ids, *given: right(self, [ids[0], *ids[:-1]]))
    verdict = check(Order("LlavaForConditionalGeneration", "llava", wraps=True), tmp_path)
    assert (verdict.state, verdict.cells) == ("wrong", {})
    assert "log probability" in verdict.detail


def test_a_class_that_has_no_text_alone_is_untried_with_its_kind(tmp_path: Path) -> None:
    verdict = check(Order("PI0ForConditionalGeneration", "pi0", wraps=True), tmp_path)
    assert (verdict.state, verdict.text_model) == ("untried", "other")
    assert "robot" in verdict.detail
    verdict = check(Order("Pix2StructForConditionalGeneration", "pix2struct", wraps=True), tmp_path)
    assert (verdict.state, verdict.text_model) == ("untried", "encoder-decoder")


def test_a_refusal_keeps_its_reason_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise checking.ConfigError(
            "AForCausalLM: it hums; most like it by name: BForCausalLM. docs/developing.md says how to add a model"
        )

    monkeypatch.setattr(checking, "_compare", refuse)
    verdict = check(Order("LlamaForCausalLM", "llama"), tmp_path)
    assert (verdict.state, verdict.detail) == ("refused", "AForCausalLM: it hums")


def test_encoders_of_texts_are_recorded() -> None:
    assert kind_of(tiny_wrapper("florence2")) == "encoder-decoder"
    assert kind_of(tiny_wrapper("llava")) == "decoder"
    assert kind_of(SimpleNamespace(model_type="diffusion_gemma")) == "other"  # type: ignore[arg-type]
