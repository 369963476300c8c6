"""Chameleon gives transformers' inputs, embeddings, logits and tokens."""

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
from lsv_testing.model import engine_config, load
from lsv_testing.shown import check_shown, encode
from lsv_testing.tiny import SHAPE, draw_weights, write_tokenizer
from lsv_testing.tiny_seeing import Seeing

CODES, SIDE = 24, 32
IMAGE, BEGIN, END, TURN = 259, 260, 261, 262
SPECIALS = ("<image>", "<racm3:break>", "<eoss>", "<reserved08706>")
VOCABULARY = {
    **{name: IMAGE + number for number, name in enumerate(SPECIALS)},
    # codes are not in the order of their tokens
    **{f"IMGIMG{chr(65 + 7 * n % CODES // 10)}{chr(65 + 7 * n % CODES % 10)}Z": 270 + n for n in range(CODES)},
}
VQ = {
    "resolution": SIDE, "base_channels": 32, "channel_multiplier": [1, 2, 2], "num_res_blocks": 1, "embed_dim": 8,
    "latent_channels": 12, "num_embeddings": CODES, "attn_resolutions": [16],
}  # fmt: skip
TEXTS = {0: b"what is \x00 this?", 1: b"\x00 and \x00", 2: b"nothing to see"}


@pytest.fixture(scope="module", params=[False, True], ids=["norms before", "norms behind"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with its tokenizer and its image processor."""
    import transformers

    path = tmp_path_factory.mktemp("chameleon")
    config = transformers.ChameleonConfig(**SHAPE, vq_config=VQ, vocabulary_map=VOCABULARY, swin_norm=request.param)
    torch.manual_seed(0)
    model = transformers.ChameleonForConditionalGeneration(config)
    draw_weights(model, 0.2)
    model.save_pretrained(path)
    square = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    transformers.ChameleonImageProcessorPil(**square).save_pretrained(path)
    write_tokenizer(path, Seeing({}, "", {}, specials=SPECIALS))
    return path


def spell(text: bytes) -> list[int]:
    return [byte or IMAGE for byte in text]


class Reference:
    """transformers' own image processor and model over a checkpoint."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self.processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
        self.model: Any = transformers.ChameleonForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.pixels: dict[int, torch.Tensor] = {}

    def read(self, number: int, pictures: Sequence[Image]) -> None:
        from PIL import Image as PilImage

        images = [PilImage.fromarray(picture.pixels) for picture in pictures]
        self.pixels[number] = self.processor(images=images, return_tensors="pt")["pixel_values"]

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        """Of text: those of images are the lowest there are."""
        given = {"pixel_values": self.pixels[number]} if number in self.pixels else {}
        found: torch.Tensor = self.model(input_ids=torch.tensor([ids]), use_cache=False, **given).logits[0]
        lowest = torch.finfo(torch.float32).min
        assert (found[:, 270 : 270 + CODES] == lowest).all()
        return found[:, :270]

    @torch.inference_mode()
    def embeddings(self, number: int) -> torch.Tensor:
        found: torch.Tensor = self.model.get_image_features(self.pixels[number]).pooler_output
        return found.flatten(0, 1)


@pytest.mark.row("F-645", "F-719")
def test_inputs_embeddings_logits_and_tokens_equal_transformers(
    folder: Path, catalog: Any, shower: Any, picture: Any
) -> None:
    reference, shows, shown = Reference(folder), shower(folder, "chameleon"), {}
    for number, text in TEXTS.items():
        pictures = [picture(60, 40, number + seed) for seed in range(text.count(0))]
        shown[number] = placed = shows.place(spell(text), pictures)
        if pictures:
            reference.read(number, pictures)
            block = [BEGIN, *[IMAGE] * 64, END]
            expected = [token for byte in text for token in (block if not byte else [byte])]
            assert list(placed.ids) == [*expected, TURN]
        ours = [np.frombuffer(media.inputs["pixel_values"].data, np.float32) for media in placed.media]
        assert not ours or np.array_equal(np.concatenate(ours), reference.pixels[number].numpy().ravel())
    check_shown(engine_config(folder, "chameleon"), catalog, shown, reference.logits)
    declared = load(engine_config(folder, "chameleon"), catalog)
    assert (declared.model.head.images.start, declared.model.head.images.stop) == (270, 270 + CODES)
    seen = set()
    for number in reference.pixels:
        ours = torch.cat([encode(declared.model.encoder, media.inputs) for media in shown[number].media])
        assert torch.equal(ours, reference.embeddings(number))
        seen |= {tuple(row.tolist()) for row in ours}
    assert len(seen) > 3, "an image has several codes"


def test_engine_in_chunks_with_prefixes_and_preemption(
    folder: Path, shower: Any, picture: Any, check_engine: Any
) -> None:
    shows = shower(folder, "chameleon")
    pictures = [picture(60, 40), picture(33, 36, 1)]
    prompts = [
        shows.place(spell(b"a\x00?"), pictures[:1]),
        shows.place(spell(b"a\x00?"), pictures[1:]),
        shows.place(b"nothing", []),
        shows.place(spell(b"a\x00!"), pictures[:1]),
    ]
    roomy, expected = check_engine(folder, prompts, 11, length=112, block_size=16)
    text = {"prompt": "a<image>?", "multi_modal_data": {"image": pictures[1].pixels}}
    assert roomy.ask(text, 40) == expected[1]
    assert all(token < 270 or token >= 270 + CODES for answer in expected for token in answer)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"vocabulary_map": {"<image>": 259}}, "must have 24 tokens IMGIMG"),
        ({"vq_config": {**VQ, "double_latent": True}}, "double_latent is true"),
        ({"vq_config": {**VQ, "channel_multiplier": []}}, "channel_multiplier must list positive numbers"),
        ({"vq_config": {**VQ, "depth_kernel": 2}}, "image tokenizer does not know .*depth_kernel"),
        ({"vocab_size": 280}, "tokens of images end at 294, the vocabulary at 280"),
        ({"image_depth": 3}, "keys Chameleon does not know .*image_depth"),
    ],
)
def test_what_it_can_not_follow_is_refused(
    overrides: dict[str, Any], why: str, folder: Path, catalog: Any, tmp_path: Path
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **overrides}))
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(tmp_path, "chameleon"), catalog)


def test_files_it_can_not_take(folder: Path, shower: Callable[..., Any], tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    told = json.loads((folder / "preprocessor_config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    crop = {**told, "crop_size": {"height": 30, "width": 32}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(crop))
    with pytest.raises(CheckpointError, match="images of 30 x 32, the model takes 32 x 32"):
        shower(tmp_path, "chameleon")
    config["vocabulary_map"].pop("<eoss>")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match="vocabulary_map has no token <eoss>"):
        shower(tmp_path, "chameleon")
