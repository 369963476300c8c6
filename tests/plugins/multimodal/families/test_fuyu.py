"""Fuyu gives transformers' inputs, embeddings, logits and tokens."""

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
from lsv_base.errors import CheckpointError
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load
from lsv_testing.shown import check_shown

BEGIN, IMAGE, NEWLINE, ANSWER = 256, 259, 260, 261
TEXTS = {0: b"what is this?\n", 1: b"a small one\n", 2: b"nothing to see", 3: b""}
SIZES = {0: (60, 40), 1: (13, 7), 3: (30, 36)}


class Reference:
    """transformers' own processor and model over a checkpoint."""

    def __init__(self, folder: Path) -> None:
        import transformers

        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self.processor = transformers.FuyuProcessor(
            image_processor=transformers.AutoImageProcessor.from_pretrained(folder, backend="pil"), tokenizer=tokenizer
        )
        cut = self.processor.image_processor.patchify_image  # with PIL it takes arrays, and the processor gives tensors
        self.processor.image_processor.patchify_image = lambda image, patch_size: torch.from_numpy(
            cut(image.numpy(), patch_size)
        )
        self.model: Any = transformers.FuyuForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.inputs: dict[int, Any] = {}

    def read(self, number: int, picture: Image) -> tuple[np.ndarray[Any, Any], list[int]]:
        """Their patches, and the tokens that stand before the text."""
        from PIL import Image as PilImage

        images = [PilImage.fromarray(picture.pixels)]
        made, texts = self.processor._process_images(images, return_legacy_image_output=False, return_tensors="pt")
        self.inputs[number] = made["pixel_values"]
        return made["pixel_values"].numpy(), self.processor.tokenizer.encode(texts[0].replace("<s>", "<bos>"))

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        given = {"pixel_values": self.inputs[number][None]} if number in self.inputs else {}
        found: torch.Tensor = self.model(input_ids=torch.tensor([ids]), use_cache=False, **given).logits[0]
        return found


@pytest.mark.row("F-646", "F-719")
def test_inputs_logits_and_tokens_equal_transformers(
    checkpoint: Callable[..., Path], catalog: Any, shower: Any, picture: Any
) -> None:
    folder = checkpoint("fuyu")
    reference, shows, shown = Reference(folder), shower(folder, "fuyu"), {}
    for number, text in TEXTS.items():
        if number not in SIZES:
            shown[number] = shows.place(text, [])
            assert shown[number].ids == tuple(text), "a text alone stays as it is"
            continue
        image = picture(*SIZES[number], number)
        patches, before = reference.read(number, image)
        shown[number] = placed = shows.place([BEGIN, *text], [image])
        assert list(placed.ids) == [*before, *text, ANSWER]
        assert shows.place([BEGIN, IMAGE, *text], [image]).ids == placed.ids
        assert shows.place(placed.ids[placed.ids.index(BEGIN) :], [image]).ids == placed.ids
        (media,) = placed.media
        ours = np.frombuffer(media.inputs["pixel_values"].data, np.float32).reshape(patches.shape)
        assert np.array_equal(ours, patches)
        assert (media.start, media.count) == (0, len(before) - 1)
    check_shown(engine_config(folder, "fuyu"), catalog, shown, reference.logits)


def test_engine_in_chunks_with_prefixes_and_preemption(
    checkpoint: Callable[..., Path], shower: Any, picture: Any, check_engine: Any
) -> None:
    folder = checkpoint("fuyu")
    shows = shower(folder, "fuyu")
    pictures = [picture(60, 40), picture(33, 36, 1)]
    prompts = [
        shows.place(b"what?", pictures[:1]),
        shows.place(b"what is it?", pictures[1:]),
        shows.place(b"nothing to see", []),
        shows.place(b"where?", pictures[:1]),
    ]
    roomy, expected = check_engine(folder, prompts, 9, length=112, block_size=16)
    ids = {"prompt_token_ids": list(b"what is it?"), "multi_modal_data": {"image": pictures[1].pixels}}
    assert roomy.ask(ids, 40) == expected[1]


def test_files_of_all_ages_are_read(checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path) -> None:
    folder = checkpoint("fuyu")
    expected = load(engine_config(folder, "fuyu"), catalog).model.state_dict()
    told, stored = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    later = {
        name.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head")
        if name.startswith("language_model.")
        else f"model.{name}": value
        for name, value in stored.items()
    }
    text = told.pop("text_config")
    flat = {**{key: value for key, value in text.items() if key not in ("model_type", "rope_parameters")}, **told}
    for config, tensors in ((flat | {"rope_theta": 1e4}, stored), (told | {"text_config": text}, later)):
        (tmp_path / "config.json").write_text(json.dumps(config))
        save_file(tensors, tmp_path / "model.safetensors")
        found = load(engine_config(tmp_path, "fuyu"), catalog).model.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"image_token_id": 320}, "image_token_id is 320, but the vocabulary ends at 320"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"vision_layers": 2}, "keys Fuyu does not know .*vision_layers"),
        ({"text_config": {"mlp_gate": True}}, "keys the text_config of Fuyu does not know .*mlp_gate"),
    ],
)
def test_what_it_can_not_follow_is_refused(
    overrides: dict[str, Any], why: str, checkpoint: Callable[..., Path], catalog: Any
) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(checkpoint("fuyu"), "fuyu", overrides=overrides), catalog)


def test_files_it_can_not_take(checkpoint: Callable[..., Path], shower: Any, tmp_path: Path) -> None:
    folder = checkpoint("fuyu")
    for file in ("config.json", "preprocessor_config.json"):
        (tmp_path / file).write_text((folder / file).read_text())
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        shower(tmp_path, "fuyu")
    words = (folder / "tokenizer.json").read_text().replace("|NEWLINE|", "|LINE|")
    (tmp_path / "tokenizer.json").write_text(words)
    with pytest.raises(CheckpointError, match=r"has no token \|NEWLINE\|"):
        shower(tmp_path, "fuyu")
    told = json.loads((folder / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**told, "patch_size": {"height": 4, "width": 6}}))
    with pytest.raises(CheckpointError, match="patches of 4 x 6, the model takes 6 x 6"):
        shower(tmp_path, "fuyu")
