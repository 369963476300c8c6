"""Llama 3.2 Vision gives transformers' inputs, embeddings, logits and tokens, and respects where an image stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv.media.processor import Image
from lsv_base.errors import BadRequest, CheckpointError
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import check_shown, encode

IMAGE = 259
TEXTS = {
    0: "<|image|>what is this?",
    1: "look here: <|image|> well",
    2: "nothing to see",
    3: "<|image|>",
    4: "a<|image|>b",
}
SIZES = {0: (60, 40), 1: (28, 28), 3: (33, 190), 4: (120, 31)}


class Reference:
    """transformers' own processor and model over a checkpoint.

    Its cross-attention lets tokens before an image see it; Meta's, with which the model was trained, and vLLM's do
    not. So what it adds to those is taken away, as what the feed-forward block adds is by transformers, too.
    """

    def __init__(self, folder: Path) -> None:
        import transformers

        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self.processor = transformers.MllamaProcessor(
            image_processor=transformers.AutoImageProcessor.from_pretrained(folder, backend="pil"), tokenizer=tokenizer
        )
        self.model: Any = transformers.MllamaForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.inputs: dict[int, Any] = {}
        self._sees: torch.Tensor | None = None
        for layer in self.model.model.language_model.layers:
            if hasattr(layer, "cross_attn"):
                layer.cross_attn.register_forward_hook(self._blind)

    def _blind(self, layer: Any, given: Any, found: Any) -> Any:
        return (found[0] * self._sees[None, :, None], *found[1:])

    def read(self, number: int, ids: Sequence[int], picture: Image | None) -> Any:
        """Their inputs for a picture, and their mask for the prompt."""
        from PIL import Image as PilImage
        from transformers.models.mllama.processing_mllama import (
            convert_sparse_cross_attention_mask_to_dense,
            get_cross_attention_token_mask,
        )

        if picture is None:
            return None
        made = dict(self.processor.image_processor([[PilImage.fromarray(picture.pixels)]], return_tensors="pt"))
        spans = [get_cross_attention_token_mask(list(ids), IMAGE)]
        made["mask"] = lambda length: torch.from_numpy(
            convert_sparse_cross_attention_mask_to_dense(spans, made["num_tiles"], 4, length)
        )
        self.inputs[number] = made
        return made

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        given: dict[str, Any] = {}
        if number in self.inputs:
            made = self.inputs[number]
            given = {name: made[name] for name in ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")}
            given["cross_attention_mask"] = made["mask"](len(ids))
            self._sees = given["cross_attention_mask"][0, :, 0].any(-1)
        found: torch.Tensor = self.model(input_ids=torch.tensor([ids]), use_cache=False, **given).logits[0]
        return found

    @torch.inference_mode()
    def embeddings(self, number: int) -> torch.Tensor:
        """Those of the image's own tiles."""
        made, model = self.inputs[number], self.model.model
        names = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")
        seen = model.vision_model(**{name: made[name] for name in names}).last_hidden_state
        found: torch.Tensor = model.multi_modal_projector(seen)[0, 0]
        return found[: made["num_tiles"][0][0]].flatten(0, 1)


@pytest.mark.row("F-678", "F-719")
def test_inputs_embeddings_logits_and_tokens_equal_transformers(
    checkpoint: Callable[..., Path], catalog: Any, shower: Any, picture: Any
) -> None:
    folder = checkpoint("mllama")
    reference, shows, shown = Reference(folder), shower(folder, "mllama"), {}
    for number, text in TEXTS.items():
        ids = reference.processor.tokenizer.encode(text)
        pictures = [picture(*SIZES[number], number)] if number in SIZES else []
        theirs = reference.read(number, ids, *pictures or [None])
        shown[number] = placed = shows.place(ids, pictures)
        assert list(placed.ids) == ids, "the placeholder stays one token"
        for media in placed.media:
            tiles = theirs["num_tiles"][0][0]
            ours = np.frombuffer(media.inputs["pixel_values"].data, np.float32)
            assert np.array_equal(ours, theirs["pixel_values"][0, 0, :tiles].numpy().ravel())
            assert list(np.frombuffer(media.inputs["layout"].data, np.int64)) == theirs["aspect_ratio_ids"][0].tolist()
            assert (media.start, media.count, media.cross) == (ids.index(IMAGE), 17 * tiles, True)
    assert {theirs["num_tiles"][0][0] for theirs in reference.inputs.values()} >= {1, 4}
    check_shown(engine_config(folder, "mllama"), catalog, shown, reference.logits)
    declared = load(engine_config(folder, "mllama"), catalog)
    for number, placed in shown.items():
        for media in placed.media:
            ours = encode(declared.model.encoder, media.inputs)
            torch.testing.assert_close(ours, reference.embeddings(number), atol=1e-4, rtol=1e-4)


def test_engine_in_chunks_with_prefixes_and_preemption(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, check_engine: Any
) -> None:
    folder = checkpoint("mllama")
    shows = shower(folder, "mllama")
    pictures = [picture(60, 40), picture(33, 90, 1)]
    before = [*b"what is to be seen in the picture that comes now: "]
    prompts = [
        shows.place([*before, IMAGE, *b"here"], pictures[:1]),
        shows.place([IMAGE, *b"?"], pictures[1:]),
        shows.place([*before, *b"nothing"], []),
        shows.place([*before, IMAGE, *b"there"], pictures[:1]),
        shows.place([*before, IMAGE, *b"here"], pictures[1:]),
        shows.place([*b"nothing to see"], []),
    ]
    roomy, expected = check_engine(folder, prompts, 17, length=112, block_size=16)
    assert expected[0] != expected[4]
    prompt = {"prompt": "<|image|>?", "multi_modal_data": {"image": pictures[1].pixels}}
    assert roomy.ask(prompt, 40) == expected[1]
    assert roomy.ask({"prompt": "nothing to see"}, 40) == expected[5]


def test_text_before_an_image_is_cached_for_all_that_begin_so(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, engine: Any
) -> None:
    folder = checkpoint("mllama")
    shows, before = shower(folder, "mllama"), [*b"the same words stand before everything that is asked here: "]
    prompts = [
        shows.place([*before, IMAGE, *b"what?"], [picture(60, 40)]),
        shows.place([*before, *b"nothing?"], []),
        shows.place([*before, IMAGE, *b"what?"], [picture(40, 60)]),
    ]
    llm = engine(folder, block_size=16)
    hits = []
    for prompt in prompts:
        llm.answer([prompt], 2)
        hits.append(llm.llm.stats.prefix_hits_total)
    assert hits == [0, len(before) // 16 * 16, 2 * (len(before) // 16 * 16)]


def test_embeddings_of_the_callers_own(
    checkpoint: Callable[..., Path], catalog: Any, shower: Any, picture: Any, engine: Any
) -> None:
    folder = checkpoint("mllama")
    media = shower(folder, "mllama").place([IMAGE], [picture(60, 40)]).media[0]
    seen = encode(load(engine_config(folder, "mllama"), catalog).model.encoder, media.inputs)
    llm = engine(folder)
    shown, given = (
        llm.ask({"prompt": "say <|image|>", "multi_modal_data": {"image": image}}, 12)
        for image in (picture(60, 40).pixels, seen)
    )
    assert shown == given


@pytest.mark.parametrize(
    ("images", "texts", "why"),
    [(2, b"", "at most one media item"), (1, b"\x00", "of 1 items have no place")],
)
def test_more_than_one_image_is_refused(
    images: int, texts: bytes, why: str, checkpoint: Callable[..., Path], picture: Any, engine: Any
) -> None:
    llm = engine(checkpoint("mllama"))
    places = [] if texts else [IMAGE] * images
    data = {"image": [picture(28, 28, number).pixels for number in range(images)]}
    with pytest.raises(BadRequest, match=why):
        llm.ask({"prompt_token_ids": [65, *places], "multi_modal_data": data}, 4)


def test_names_of_all_ages_are_read(checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path) -> None:
    folder = checkpoint("mllama")
    expected = load(engine_config(folder, "mllama"), catalog).model.state_dict()
    stored = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    later = {
        name.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head")
        if name.startswith("language_model.")
        else f"model.{name}": value
        for name, value in stored.items()
    }
    assert {name.partition(".")[0] for name in later} == {"model", "lm_head"}
    save_file(later, tmp_path / "model.safetensors")
    found = load(engine_config(tmp_path, "mllama"), catalog).model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_published_config(catalog: Any, tmp_path: Path) -> None:
    published = {
        "architectures": ["MllamaForConditionalGeneration"], "image_token_index": 128256, "model_type": "mllama",
        "text_config": {
            "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38], "dropout": 0,
            "eos_token_id": [128001, 128008, 128009],
            "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
            "max_position_embeddings": 131072, "model_type": "mllama_text_model", "num_attention_heads": 32,
            "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
            "rope_theta": 500000.0, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 128256,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {
            "attention_heads": 16, "hidden_act": "gelu", "hidden_size": 1280, "image_size": 560,
            "initializer_range": 0.02, "intermediate_layers_indices": [3, 7, 15, 23, 30], "intermediate_size": 5120,
            "max_num_tiles": 4, "model_type": "mllama_vision_model", "norm_eps": 1e-05, "num_channels": 3,
            "num_global_layers": 8, "num_hidden_layers": 32, "patch_size": 14, "vision_output_dim": 7680,
            "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(published))
    declared = declare(engine_config(tmp_path, "mllama"), catalog)
    assert declared.model.encoder.parts == 40
    assert declared.groups[-1].cross_len == 4 * 1601
    assert stored_bytes(declared) == 4 * 10_670_220_835


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"text_config": {"cross_attention_layers": [4]}}, "cross_attention_layers must name some of the 4 layers"),
        ({"text_config": {"tie_word_embeddings": True}}, "tie_word_embeddings"),
        ({"vision_config": {"vision_output_dim": 64}}, "vision_output_dim must be 96, got 64"),
        ({"vision_config": {"intermediate_layers_indices": [3]}}, "some of the tower's 3 layers"),
        ({"vision_config": {"tubelet_size": 2}}, "tubelet_size"),
        ({"image_token_index": 267}, "image_token_index is 267, but the vocabulary ends at 267"),
    ],
)
def test_what_it_can_not_follow_is_refused(
    overrides: dict[str, Any], why: str, checkpoint: Callable[..., Path], catalog: Any
) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(checkpoint("mllama"), "mllama", overrides=overrides), catalog)


def test_tiles_that_are_not_the_towers_are_refused(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, clip: Any, tmp_path: Path
) -> None:
    folder = checkpoint("mllama")
    shows = shower(folder, "mllama")
    with pytest.raises(BadRequest, match="no option max_image_tiles"):
        shows.place([IMAGE], [picture(30, 40)], max_image_tiles=2)
    with pytest.raises(BadRequest, match="no video"):
        shows.place([IMAGE], [clip(4, 30, 40)])
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    told = json.loads((folder / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**told, "max_image_tiles": 2}))
    with pytest.raises(CheckpointError, match="up to 2 tiles of 28 x 28, the tower takes 4 of 28 x 28"):
        shower(tmp_path, "mllama")
