"""BLIP-2 gives transformers' inputs, embeddings, logits and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lsv.media.processor import Image
from lsv_base.errors import CheckpointError
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import check_shown, encode

IMAGE, QUERIES = 259, 9
TEXTS = {0: "Question: what is this? Answer:", 1: "a photo of", 2: "nothing to see"}
SIZES = {0: (60, 40), 1: (13, 70)}


class Reference:
    """transformers' own processor and model over a checkpoint."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.processor = transformers.Blip2Processor(
            image_processor=transformers.AutoImageProcessor.from_pretrained(folder, backend="pil"),
            tokenizer=transformers.PreTrainedTokenizerFast.from_pretrained(folder),
            num_query_tokens=QUERIES,
        )
        self.model: Any = transformers.Blip2ForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.pixels: dict[int, torch.Tensor] = {}

    def read(self, number: int, text: str, pictures: Sequence[Image]) -> list[int]:
        from PIL import Image as PilImage

        images = [PilImage.fromarray(picture.pixels) for picture in pictures]
        given = self.processor(images=images or None, text=text, return_tensors="pt")
        if images:
            self.pixels[number] = given["pixel_values"]
        return list(given["input_ids"][0].tolist())

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        """Of the prompt and what came after it: there, a placeholder is a token like any other."""
        x = self.model.get_input_embeddings()(torch.tensor(ids))
        if number in self.pixels:
            x[:QUERIES] = self.embeddings(number)
        found: torch.Tensor = self.model.language_model(inputs_embeds=x[None], use_cache=False).logits[0]
        return found

    @torch.inference_mode()
    def embeddings(self, number: int) -> torch.Tensor:
        found: torch.Tensor = self.model.get_image_features(self.pixels[number]).pooler_output[0]
        return found


@pytest.mark.row("F-644", "F-719")
def test_inputs_embeddings_logits_and_tokens_equal_transformers(
    checkpoint: Callable[..., Path], catalog: Any, shower: Any, picture: Any
) -> None:
    folder = checkpoint("blip-2")
    reference, shows, shown = Reference(folder), shower(folder, "blip2"), {}
    for number, text in TEXTS.items():
        pictures = [picture(*SIZES[number], number)] if number in SIZES else []
        theirs, ids = reference.read(number, text, pictures), reference.processor.tokenizer.encode(text)
        shown[number] = placed = shows.place(ids, pictures)
        assert list(placed.ids) == theirs
        for media in placed.media:
            ours = np.frombuffer(media.inputs["pixel_values"].data, np.float32)
            assert np.array_equal(ours, reference.pixels[number].numpy().ravel())
            assert shows.place([IMAGE, *ids], pictures).ids == placed.ids
    check_shown(engine_config(folder, "blip2"), catalog, shown, reference.logits)
    declared = load(engine_config(folder, "blip2"), catalog)
    for number in reference.pixels:
        ours = encode(declared.model.encoder, shown[number].media[0].inputs)
        torch.testing.assert_close(ours, reference.embeddings(number), atol=1e-4, rtol=1e-4)


def test_engine_in_chunks_with_prefixes_and_preemption(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, check_engine: Any
) -> None:
    folder = checkpoint("blip-2")
    shows = shower(folder, "blip2")
    pictures = [picture(60, 40), picture(33, 36, 1)]
    prompts = [
        shows.place(b"what is to be seen here?", pictures[:1]),
        shows.place(b"what is to be seen here?", pictures[1:]),
        shows.place(b"nothing to see", []),
        shows.place(b"what is to be seen there?", pictures[:1]),
    ]
    roomy, expected = check_engine(folder, prompts, 9, length=112, block_size=16)
    text = {"prompt": "what is to be seen here?", "multi_modal_data": {"image": pictures[1].pixels}}
    assert roomy.ask(text, 40) == expected[1]


def test_the_published_config(catalog: Any, tmp_path: Path) -> None:
    published = {
        "architectures": ["Blip2ForConditionalGeneration"], "image_text_hidden_size": 256, "image_token_index": 50265,
        "initializer_factor": 1.0, "initializer_range": 0.02, "model_type": "blip-2", "num_query_tokens": 32,
        "qformer_config": {"classifier_dropout": None, "model_type": "blip_2_qformer"},
        "text_config": {
            "_name_or_path": "facebook/opt-2.7b", "activation_dropout": 0.0, "architectures": ["OPTForCausalLM"],
            "eos_token_id": 50118, "ffn_dim": 10240, "hidden_size": 2560, "model_type": "opt",
            "num_attention_heads": 32, "num_hidden_layers": 32, "prefix": "</s>", "torch_dtype": "float16",
            "word_embed_proj_dim": 2560, "vocab_size": 50304,
        },
        "torch_dtype": "float32", "use_decoder_only_language_model": True,
        "vision_config": {"dropout": 0.0, "initializer_factor": 1.0, "model_type": "blip_2_vision_model"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(published))
    declared = declare(engine_config(tmp_path, "blip2"), catalog)
    assert declared.model.encoder.parts == 40
    # of the first published file, and the rows that were added to the embedding for the placeholder
    assert stored_bytes(declared) == 4 * (3_744_679_936 + 32 * 2560)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"text_config": {"model_type": "t5"}}, "language models are opt, got 't5'"),
        ({"text_config": {"word_embed_proj_dim": 32}}, "word_embed_proj_dim must be hidden_size"),
        ({"image_token_index": None}, "image_token_index is None"),
        ({"image_token_index": 320}, "image_token_index is 320, but the vocabulary ends at 320"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"vision_config": {"qkv_bias": False}}, "qkv_bias is False"),
        ({"qformer_config": {"use_qformer_text_input": True}}, "use_qformer_text_input is True"),
        ({"qformer_config": {"query_window": 3}}, "keys the transformer of queries does not know .*query_window"),
    ],
)
def test_what_it_can_not_follow_is_refused(
    overrides: dict[str, Any], why: str, checkpoint: Callable[..., Path], catalog: Any
) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(checkpoint("blip-2"), "blip2", overrides=overrides), catalog)


def test_squares_that_are_not_the_towers_are_refused(
    checkpoint: Callable[..., Path], shower: Any, tmp_path: Path
) -> None:
    folder = checkpoint("blip-2")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    told = json.loads((folder / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**told, "size": {"height": 30, "width": 28}}))
    with pytest.raises(CheckpointError, match="images of 30 x 28, the tower takes 28 x 28"):
        shower(tmp_path, "blip2")
