"""Which model serves a checkpoint that names what no plugin offers, or holds more than a language model."""

from types import SimpleNamespace

import pytest

from lsv.config import Choices
from lsv.offers import FamilyOffer, ModelOffer
from lsv.request.media_needs import MediaNeeds
from lsv.resolve.architecture.choice import choose_model, unwanted_media
from lsv.resolve.architecture.families import Families, Wrapper
from lsv.resolve.locate import merge
from lsv_testing.catalog import catalog_of

NATIVE = ModelOffer("plain", ("PlainForCausalLM",), "x:y", block_size=48, unstable={"float16": "it overflows"})
SEEING = ModelOffer("seeing", ("SeeingForConditionalGeneration",), "x:y", modalities=("text", "image"))
FALLBACK = ModelOffer("library", (), "x:y", fallback=True, adapts=True)
TOWERED = ModelOffer(
    "towered", ("ToweredForConditionalGeneration",), "x:y", modalities=("text", "image"), adapts=True,
    media_needs=MediaNeeds(("processor.json", "images.json"), bars={"mutual": "images see themselves"}),
)  # fmt: skip
WHOLE = {
    "architectures": ["FreshForConditionalGeneration"],
    "model_type": "fresh",
    "text_config": {"model_type": "plain", "hidden_size": 48, "sliding_window": None},
    "vision_config": {"hidden_size": 32},
    "eos_token_id": 7,
    "image_token_id": 9,
    "quantization_config": {"quant_method": "fp8"},
}


def known() -> Families:
    return Families(
        architectures={"plain": "PlainForCausalLM", "other": "OtherForCausalLM"},
        wrappers={
            "fresh": Wrapper("FreshForConditionalGeneration", "plain", True, {"num_layers": 3}),
            "odd": Wrapper("OddForConditionalGeneration", ""),
        },
        defaults={
            "plain": {
                "num_heads": 8, "num_layers": 2, "sliding_window": 4096, "rope_parameters": {"rope_theta": 5.0}
            }
        },
        aliases={"PLAINForCausalLM": "PlainForCausalLM"},
    )  # fmt: skip


@pytest.fixture
def catalog():
    return catalog_of(
        SimpleNamespace(
            lsv_models=lambda: (NATIVE, SEEING, TOWERED, FALLBACK),
            lsv_families=lambda: [FamilyOffer("table", f"{__name__}:known")],
        )
    )


def choose(catalog, checkpoint, tmp_path, **asked):
    choices = Choices()
    served = choose_model(checkpoint, tmp_path, catalog, choices, **asked)
    config = {key: value for key, value in merge(checkpoint, served.overrides).items() if value is not None}
    return served, config, " ".join(f"{reason.value}: {reason.why}" for reason in choices.reasons)


def test_the_language_model_takes_the_place_of_the_whole(catalog, tmp_path):
    served, config, said = choose(catalog, WHOLE, tmp_path)
    assert (served.architecture, served.model, served.wrapper) == (
        "PlainForCausalLM", NATIVE, "FreshForConditionalGeneration",
    )  # fmt: skip
    assert config == {
        "architectures": ["PlainForCausalLM"], "model_type": "plain", "hidden_size": 48, "num_heads": 8,
        "num_layers": 3, "rope_parameters": {"rope_theta": 5.0}, "tie_word_embeddings": True, "eos_token_id": 7,
        "quantization_config": {"quant_method": "fp8"},
    }  # fmt: skip
    assert "the language model of FreshForConditionalGeneration alone" in said


@pytest.mark.parametrize(
    ("text", "tied", "expected"),
    [
        ({}, None, True),
        ({}, False, False),
        ({"tie_word_embeddings": False}, None, True),
        ({"tie_word_embeddings": True}, False, False),
    ],
)
def test_the_whole_says_whether_the_head_is_tied(text, tied, expected, catalog, tmp_path):
    whole = {**WHOLE, "text_config": {"model_type": "plain", **text}}
    whole |= {} if tied is None else {"tie_word_embeddings": tied}
    assert choose(catalog, whole, tmp_path)[1]["tie_word_embeddings"] is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ({"rope_theta": 3.0}, {"rope_theta": 3.0}),
        ({"rope_parameters": {"factor": 2.0}}, {"rope_parameters": {"factor": 2.0}, "rope_theta": 5.0}),
        ({"rope_scaling": {"factor": 2.0}}, {"rope_scaling": {"factor": 2.0}, "rope_theta": 5.0}),
    ],
)
def test_a_rope_rule_keeps_its_layout(text, expected, catalog, tmp_path):
    config = choose(catalog, {**WHOLE, "text_config": {"model_type": "plain", **text}}, tmp_path)[1]
    assert {key: value for key, value in config.items() if key.startswith("rope")} == expected


def test_a_half_that_names_its_architecture_needs_no_table(catalog, tmp_path):
    whole = {
        "architectures": ["StrangeModel"],
        "model_type": "strange",
        "llm_config": {"architectures": ["PlainForCausalLM"], "hidden_size": 4},
    }
    served, config, _ = choose(catalog, whole, tmp_path)
    assert served.model == NATIVE
    assert config["hidden_size"] == 4


@pytest.mark.parametrize(
    "whole",
    [
        {**WHOLE, "text_config": {"model_type": "other"}},
        {**WHOLE, "model_type": "odd"},
        {**WHOLE, "is_encoder_decoder": True},
    ],
)
def test_a_whole_that_can_not_be_divided_stays_whole(whole, catalog, tmp_path):
    served, _, _ = choose(catalog, whole, tmp_path)
    assert served.model == FALLBACK
    assert not served.wrapper


def test_the_adapter_runs_the_whole_where_it_is_asked_for(catalog, tmp_path):
    served, _, _ = choose(catalog, WHOLE, tmp_path, asked="transformers")
    assert (served.model, served.overrides) == (FALLBACK, {})


def test_a_native_language_model_satisfies_model_impl_native(catalog, tmp_path):
    assert choose(catalog, WHOLE, tmp_path, asked="native")[0].model == NATIVE


@pytest.mark.parametrize(
    ("unwanted", "expected"), [((), SEEING), (("audio",), SEEING), (("image",), NATIVE), (("image", "video"), NATIVE)]
)
def test_towers_that_nobody_wants_are_left_out(unwanted, expected, catalog, tmp_path):
    whole = {**WHOLE, "architectures": ["SeeingForConditionalGeneration"]}
    assert choose(catalog, whole, tmp_path, unwanted=unwanted)[0].model == expected


def test_a_tower_of_a_library_keeps_what_holds_for_its_language_model(catalog, tmp_path):
    (tmp_path / "images.json").touch()
    whole = {**WHOLE, "architectures": ["ToweredForConditionalGeneration"]}
    served, config, _ = choose(catalog, whole, tmp_path)
    assert (served.architecture, served.model.name, served.wrapper) == (
        "ToweredForConditionalGeneration",
        "towered",
        "",
    )
    assert (served.model.block_size, served.model.unstable) == (NATIVE.block_size, NATIVE.unstable)
    assert config == whole


@pytest.mark.parametrize(
    ("files", "asked", "why"),
    [
        ((), {}, "none: the checkpoint has neither processor.json nor images.json, which say how media are prepared"),
        (("images.json",), {"within": True}, "none: the layers that draft belong to the language model"),
        (("images.json",), {"unwanted": ("image",)}, "the language model of ToweredForConditionalGeneration alone"),
    ],
)
def test_a_tower_of_a_library_may_be_left_out(files, asked, why, catalog, tmp_path):
    for name in files:
        (tmp_path / name).touch()
    whole = {**WHOLE, "architectures": ["ToweredForConditionalGeneration"]}
    served, _, said = choose(catalog, whole, tmp_path, **asked)
    assert (served.model, served.wrapper) == (NATIVE, "ToweredForConditionalGeneration")
    assert why in said


@pytest.mark.parametrize(("asked", "expected"), [("native", NATIVE), ("transformers", FALLBACK)])
def test_model_impl_is_about_the_language_model_alone(asked, expected, catalog, tmp_path):
    (tmp_path / "images.json").touch()
    whole = {**WHOLE, "architectures": ["ToweredForConditionalGeneration"]}
    assert choose(catalog, whole, tmp_path, asked=asked)[0].model == expected


@pytest.mark.parametrize(
    ("vision", "expected"), [({"model_type": "other"}, "other"), ({"model_type": "usual"}, "seeing"), (None, "seeing")]
)
def test_a_value_of_config_json_tells_families_of_one_name_apart(vision, expected, tmp_path):
    other = ModelOffer(
        "other", ("OtherForConditionalGeneration",), "x:y", modalities=("text", "image"),
        told_by={"SeeingForConditionalGeneration": "vision_config.model_type=other"},
    )  # fmt: skip
    catalog = catalog_of(SimpleNamespace(lsv_models=lambda: (NATIVE, SEEING, other, FALLBACK)))
    whole = {**WHOLE, "architectures": ["SeeingForConditionalGeneration"], "vision_config": vision}
    assert choose(catalog, whole, tmp_path)[0].model.name == expected


def test_a_key_may_bar_images(catalog, tmp_path):
    (tmp_path / "images.json").touch()
    text = {**WHOLE["text_config"], "mutual": True}
    whole = {**WHOLE, "architectures": ["ToweredForConditionalGeneration"], "text_config": text}
    served, _, said = choose(catalog, whole, tmp_path)
    assert served.model == NATIVE
    assert "none: images see themselves (mutual in config.json)" in said


def test_images_need_the_packages_that_prepare_them(tmp_path):
    offer = ModelOffer(
        "packed", ("PackedForConditionalGeneration",), "x:y", modalities=("text", "image"), adapts=True,
        media_needs=MediaNeeds(packages=("json", "package_that_is_nowhere")),
    )  # fmt: skip
    catalog = catalog_of(SimpleNamespace(lsv_models=lambda: (NATIVE, offer, FALLBACK), lsv_families=lambda: [
        FamilyOffer("table", f"{__name__}:known")
    ]))  # fmt: skip
    served, _, said = choose(catalog, {**WHOLE, "architectures": ["PackedForConditionalGeneration"]}, tmp_path)
    assert served.model == NATIVE
    assert "none: media need the package package_that_is_nowhere, which is not installed" in said


def test_the_adapter_serves_text_where_a_tower_is_left_out_and_no_native_model_fits(catalog, tmp_path):
    whole = {"architectures": ["ToweredForConditionalGeneration"], "model_type": "unheard"}
    assert choose(catalog, whole, tmp_path)[0].model == FALLBACK


@pytest.mark.parametrize(
    ("name", "kind", "expected", "why"),
    [
        ("PLAINForCausalLM", "whatever", "PlainForCausalLM", "PLAINForCausalLM is another name for it"),
        ("NewestForCausalLM", "plain", "PlainForCausalLM", "NewestForCausalLM is unknown, and checkpoints of"),
        ("NewestForCausalLM", "other", "OtherForCausalLM", "NewestForCausalLM is unknown, and checkpoints of"),
        ("OtherForCausalLM", "plain", "OtherForCausalLM", "no native model offers it"),
        ("NewestForCausalLM", "unheard", "NewestForCausalLM", "no native model offers it"),
    ],
)
def test_an_unknown_name_means_what_its_model_type_is(name, kind, expected, why, catalog, tmp_path):
    served, config, said = choose(catalog, {"architectures": [name], "model_type": kind}, tmp_path)
    assert served.architecture == expected == config["architectures"][0]
    assert why in said


def test_media_may_be_unwanted_one_by_one_or_all_together():
    settings = {"language_model_only": False, "limit_mm_per_prompt": {"image": 0, "video": 2}}
    assert unwanted_media(settings) == {"image"}
    assert unwanted_media({**settings, "language_model_only": True}) == {"image", "audio", "video"}
    assert unwanted_media({**settings, "limit_mm_per_prompt": None}) == set()
