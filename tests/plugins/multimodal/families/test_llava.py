"""LLaVA-1.5 and LLaVA-NeXT give transformers' inputs, embeddings, logits and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv_base.errors import BadRequest, CheckpointError
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes

from .conftest import PicturesReference

IMAGE = 259
CLIP: dict[str, Any] = {}
SIGLIP = {"vision_config": {"model_type": "siglip_vision_model"}, "vision_feature_select_strategy": "full"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("llava", CLIP),
    "siglip, last layer, qwen2": (
        "llava", {**SIGLIP, "vision_feature_layer": -1, "text_config": {"model_type": "qwen2"}}
    ),
    "two layers with their class tokens, mistral, tied, no bias": (
        "llava",
        {
            "vision_feature_layer": [-2, 1],
            "vision_feature_select_strategy": "full",
            "text_config": {"model_type": "mistral", "tie_word_embeddings": True},
            "multimodal_projector_bias": False,
        },
    ),
    "next": ("llava_next", CLIP),
    "next, siglip": ("llava_next", SIGLIP),
}  # fmt: skip
TEXTS = {0: ("see <image> here", 1), 1: ("<image>\n<image>?", 2), 2: ("nothing to see", 0), 3: ("wide: <image>", 1)}
SIZES = {0: [(60, 40)], 1: [(28, 28), (33, 90)], 2: [], 3: [(120, 31)]}


class Reference(PicturesReference):
    placeholder = IMAGE

    def __init__(self, folder: Path) -> None:
        import transformers

        config = json.loads((folder / "config.json").read_text())
        architecture = config["architectures"][0]
        clip = config["vision_config"]["model_type"] == "clip_vision_model"
        processor = getattr(transformers, architecture.replace("ForConditionalGeneration", "Processor"))(
            image_processor=transformers.AutoImageProcessor.from_pretrained(folder, backend="pil"),
            tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(folder),
            patch_size=7,
            vision_feature_select_strategy=config["vision_feature_select_strategy"],
            num_additional_image_tokens=int(clip),
        )
        super().__init__(folder, architecture, processor)

    @torch.inference_mode()
    def embeddings(self, number: int) -> torch.Tensor:
        given, config = self.inputs[number], self.model.config
        found = self.model.model.get_image_features(
            **{name: given[name] for name in ("pixel_values", "image_sizes") if name in given},
            vision_feature_layer=config.vision_feature_layer,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
        )
        return torch.cat(list(found.pooler_output))


@pytest.mark.row("F-648", "F-649", "F-719")
@pytest.mark.parametrize("case", CASES)
def test_inputs_embeddings_logits_and_tokens_equal_transformers(
    case: str, checkpoint: Callable[..., Path], catalog: Any, shower: Any, picture: Any
) -> None:
    family, shape = CASES[case]
    folder = checkpoint(family, **shape)
    reference, shows, shown = Reference(folder), shower(folder, family), {}
    for number, (text, _) in TEXTS.items():
        pictures = [picture(*size, seed) for seed, size in enumerate(SIZES[number])]
        theirs = reference.read(number, text, pictures)
        ids = reference.processor.tokenizer.encode(text)
        shown[number] = placed = shows.place(ids, pictures)
        assert list(placed.ids) == theirs["input_ids"][0].tolist()
        for index, media in enumerate(placed.media):
            ours = np.frombuffer(media.inputs["pixel_values"].data, np.float32)
            one = theirs["pixel_values"][index].numpy().ravel()
            # where pictures of one prompt have fewer tiles than others, theirs are padded
            assert np.array_equal(ours, one[: len(ours)])
            assert not one[len(ours) :].any()
    reference.check(engine_config(folder, family), catalog, shown)


@pytest.mark.parametrize("family", ["llava", "llava_next"])
def test_names_of_all_ages_are_read(family: str, checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path) -> None:
    folder = checkpoint(family)
    expected = load(engine_config(folder, family), catalog).model.state_dict()
    stored = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    towers = {name.replace("vision_tower.", "vision_tower.vision_model."): value for name, value in stored.items()}
    later = {
        name.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head")
        if name.startswith("language_model.")
        else f"model.{name}": value
        for name, value in towers.items()
    }
    assert {name.partition(".")[0] for name in later} == {"model", "lm_head"}
    for names in (towers, later):
        save_file(names, tmp_path / "model.safetensors")
        found = load(engine_config(tmp_path, family), catalog).model.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_tensor_too_many_is_named(checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path) -> None:
    folder = checkpoint("llava")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    stored = load_file(folder / "model.safetensors")
    del stored["multi_modal_projector.linear_1.bias"]
    save_file({**stored, "vision_tower.adapter.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as failed:
        load(engine_config(tmp_path, "llava"), catalog)
    assert "multi_modal_projector.linear_1.bias is missing" in str(failed.value)
    assert "vision_tower.adapter.weight is unexpected" in str(failed.value)


def test_a_published_config_leaves_sizes_out(catalog: Any, tmp_path: Path) -> None:
    published = {
        "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_token_index": 32000,
        "model_type": "llava", "pad_token_id": 32001, "projector_hidden_act": "gelu",
        "text_config": {
            "_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"],
            "max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-05, "torch_dtype": "float16",
            "vocab_size": 32064,
        },
        "tie_word_embeddings": False, "torch_dtype": "float16", "vision_feature_layer": -2,
        "vision_config": {
            "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
            "vocab_size": 32000,
        },
        "vision_feature_select_strategy": "default", "vocab_size": 32064,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(published))
    declared = declare(engine_config(tmp_path, "llava"), catalog)
    assert declared.model.encoder.parts == 23
    # all of the published file but the last layer of the tower and the norm behind it
    assert stored_bytes(declared) == 4 * (7_063_427_072 - 12_596_224 - 2_048)


@pytest.mark.parametrize(
    ("family", "overrides", "why"),
    [
        ("llava", {"text_config": {"model_type": "phi"}}, "language models are llama, mistral, qwen2, got 'phi'"),
        ("llava", {"vision_config": {"model_type": "pixtral"}}, "vision towers are .*, got pixtral"),
        ("llava", {"vision_config": {"tubelet_size": 2}}, "keys clip_vision_model does not know .*tubelet_size"),
        ("llava", {"vision_feature_layer": []}, "must name a layer of the tower, got an empty list"),
        ("llava", {"vision_feature_layer": -5}, "one of the tower's 3, got -5"),
        ("llava", {"image_token_index": 320}, "image_token_index is 320, but the vocabulary ends at 320"),
        ("llava_next", {"vision_feature_select_strategy": "full"}, "tiles need patches alone"),
    ],
)
def test_what_it_can_not_follow_is_refused(
    family: str, overrides: dict[str, Any], why: str, checkpoint: Callable[..., Path], catalog: Any
) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(checkpoint(family), family, overrides=overrides), catalog)


@pytest.mark.parametrize("family", ["llava", "llava_next"])
def test_pictures_and_options_it_can_not_take(
    family: str, checkpoint: Callable[..., Path], shower: Any, picture: Any, clip: Any
) -> None:
    shows = shower(checkpoint(family), family)
    with pytest.raises(BadRequest, match="900 x 4 is too thin"):
        shows.place([IMAGE], [picture(900, 4)])
    with pytest.raises(BadRequest, match="no option min_pixels"):
        shows.place([IMAGE], [picture(30, 40)], min_pixels=9)
    with pytest.raises(BadRequest, match="no video"):
        shows.place([IMAGE], [clip(4, 30, 40)])
    for size in ((1, 1), (3, 7), (7, 3), (200, 1), (1, 200)):
        shows.place([IMAGE], [picture(*size)])


def test_only_an_image_that_becomes_one_square_may_be_reduced(
    checkpoint: Callable[..., Path], shower: Callable[[Path, str], Any]
) -> None:
    square = shower(checkpoint("llava"), "llava").processor
    size = square._processor.size.get("shortest_edge") or square._processor.size["height"]
    assert square.resized(40 * size, 20 * size) in ((2 * size, size), (size, size))
    square._processor.do_resize = False
    assert square.resized(4000, 2000) == (4000, 2000)
    tiles = shower(checkpoint("llava_next"), "llava_next").processor
    assert tiles.resized(4000, 2000) == (4000, 2000), "the layout of its tiles depends on the size"


def test_engine_in_chunks_with_prefixes_and_preemption(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, check_engine: Any
) -> None:
    folder = checkpoint("llava_next")
    shows = shower(folder, "llava_next")
    pictures = [picture(60, 40), picture(33, 90, 1)]
    prompts = [
        shows.place([*b"see", IMAGE, *b"here"], pictures[:1]),
        shows.place([IMAGE, IMAGE, *b"?"], pictures),
        shows.place([*b"nothing to see"], []),
        shows.place([*b"see", IMAGE, *b"there"], pictures[:1]),
        shows.place([*b"see", IMAGE, *b"here"], pictures[1:]),
    ]
    roomy, expected = check_engine(folder, prompts, 9, length=192)
    assert expected[0] != expected[4]
    assert roomy.llm.config.max_model_len == 512
    prompt = {"prompt": "<image><image>?", "multi_modal_data": {"image": [one.pixels for one in pictures]}}
    assert roomy.ask(prompt, 40) == expected[1]
