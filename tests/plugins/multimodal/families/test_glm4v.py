"""GLM-4.1V gives transformers' inputs, positions, embeddings, logits and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from lsv.media.processor import Video
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.families.glm4v import fit
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import check_shown

from .conftest import SMALL, PairsReference, check_pairs, patches, read, show_pairs

FAMILY = "glm4v"
START, END, IMAGE, VIDEO, VIDEO_STARTS, VIDEO_ENDS = range(259, 265)


def see(modality: str) -> list[int]:
    return [START, IMAGE, END] if modality == "image" else [VIDEO_STARTS, VIDEO, VIDEO_ENDS]


@pytest.fixture(scope="session")
def folder(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint(FAMILY)


@pytest.fixture(scope="session")
def prompts(folder: Path, shower: Any, picture: Any, clip: Any) -> dict[int, Prompt]:
    return show_pairs(shower(folder, FAMILY), see, picture, clip)


class Glm4vReference(PairsReference):
    @torch.inference_mode()
    def embeddings(self, media: Any) -> torch.Tensor:
        pixels, grid = torch.from_numpy(patches(media)), torch.from_numpy(read(media, "grid"))[None]
        of = self.model.model.get_image_features if media.modality == "image" else self.model.model.get_video_features
        return of(pixels, grid).pooler_output[0]  # type: ignore[no-any-return]


@pytest.mark.row("F-661")
def test_positions_embeddings_logits_and_tokens_equal_transformers(
    folder: Path, catalog: Any, prompts: dict[int, Prompt]
) -> None:
    reference = Glm4vReference(folder, "Glm4vForConditionalGeneration", prompts)
    declared = load(engine_config(folder, FAMILY), catalog)
    reference.check(declared.model.encoder)
    check_shown(engine_config(folder, FAMILY), catalog, prompts, reference.logits)


def test_pictures_are_prepared_as_transformers_does(folder: Path, shower: Any, picture: Any) -> None:
    from transformers import AutoImageProcessor

    shows, theirs = shower(folder, FAMILY), AutoImageProcessor.from_pretrained(folder, backend="pil")
    for size in ((60, 40), (8, 8), (200, 3), (3, 200), (1, 1), (90, 90)):
        media = shows.place([IMAGE], [picture(*size)]).media[0]
        made = theirs(images=Image.fromarray(picture(*size).pixels), return_tensors="np")
        np.testing.assert_allclose(patches(media), made["pixel_values"], rtol=0, atol=1e-6)
        assert read(media, "grid").tolist() == made["image_grid_thw"][0].tolist()
        assert media.count == made["image_grid_thw"].prod() // 4


def test_frames_are_sized_as_in_transformers() -> None:
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    draw = np.random.default_rng(0)
    for frames, height, width, least, most in draw.integers(
        (1, 5, 5, 1, 4000), (40, 900, 900, 4000, 900_000), (400, 5)
    ):
        bounds, frames = (int(least), int(most)), 2 * int(frames)
        theirs = smart_resize(frames, int(height), int(width), 2, 28, *bounds)
        assert fit(frames, (int(height), int(width)), 28, bounds) == theirs


def test_clips_are_pairs_of_frames_with_their_seconds(folder: Path, shower: Any, clip: Any) -> None:
    """As transformers writes them; frames as it cuts pictures."""
    from transformers import Glm4vProcessor

    shows = shower(folder, FAMILY)
    made: Video = clip(5, 32, 24, fps=0.05)
    placed = shows.place(see("video"), [made], min_pixels=6 * 768, max_pixels=6 * 1024)
    theirs: Any = SimpleNamespace(image_token="i", video_processor=SimpleNamespace(merge_size=2))
    theirs.replace_frame_token_id = lambda *given, **more: Glm4vProcessor.replace_frame_token_id(theirs, *given, **more)
    seen = {
        "video_grid_thw": np.array([[3, 6, 8]]),
        "video_metadata": [SimpleNamespace(fps=0.05, timestamps=made.times.tolist())],
    }
    text = Glm4vProcessor.replace_video_token(theirs, seen, 0)
    marks = {START: "<|begin_of_image|>", END: "<|end_of_image|>", IMAGE: "i"}
    assert "".join(marks.get(id) or chr(id) for id in placed.ids[1:-1]) == text
    assert text.endswith("80")
    check_pairs(placed, made)


def test_embeddings_of_videos_are_refused(folder: Path, engine: Any) -> None:
    given = {"embeddings": np.zeros((12, 64), np.float32), "grid": [1, 6, 8]}
    one = engine(folder)
    assert len(one.ask({"prompt": "<|image|>", "multi_modal_data": {"image": given}}, 2)) == 2
    with pytest.raises(BadRequest, match="embeddings of a video have no seconds"):
        one.ask({"prompt": "<|video|>", "multi_modal_data": {"video": given}}, 2)


def test_seconds_need_a_tokenizer(folder: Path, shower: Any, tmp_path: Path) -> None:
    for file in ("config.json", "preprocessor_config.json"):
        (tmp_path / file).write_text((folder / file).read_text())
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        shower(tmp_path, FAMILY)


def test_published_configs_and_names(folder: Path, catalog: Any, tmp_path: Path) -> None:
    """Flat, with the older keys of ropes; names as transformers has them inside, and without what is around."""
    expected = load(engine_config(folder, FAMILY), catalog).model.state_dict()
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    flat = {
        **text, **config, "attention_bias": True, "partial_rotary_factor": 0.5, "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "default", "mrope_section": rope["mrope_section"]},
    }  # fmt: skip
    stored = load_file(folder / "model.safetensors")
    plain = {name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): value
             for name, value in stored.items()}  # fmt: skip
    assert {name.split(".")[0] for name in plain} == {"model", "visual", "lm_head"}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    for names in (stored, plain):
        save_file(names, tmp_path / "model.safetensors")
        found = load(engine_config(tmp_path, FAMILY), catalog).model.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_published_sizes_fit(catalog: Any, tmp_path: Path) -> None:
    vision = {
        "attention_bias": False, "depth": 24, "hidden_act": "silu", "hidden_size": 1536, "image_size": 336,
        "in_channels": 3, "intermediate_size": 13696, "num_heads": 12, "out_hidden_size": 4096, "patch_size": 14,
        "rms_norm_eps": 1e-05, "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    config = {
        "architectures": ["Glm4vForConditionalGeneration"], "attention_bias": True, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 13696, "max_position_embeddings": 65536, "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 2, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05,
        "rope_scaling": {"mrope_section": [8, 12, 12], "type": "default"}, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "vocab_size": 151552, "vision_config": vision,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert stored_bytes(declare(engine_config(tmp_path, FAMILY), catalog)) == 4 * 10_292_777_472


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"vision_config": {"deepstack_visual_indexes": [1]}}, "keys Glm4v's vision_config does not know"),
        ({"future_layers": 3}, "keys Glm4v does not know .*future_layers"),
        ({"image_token_id": 320}, "image_token_id is 320, but the vocabulary ends at 320"),
        ({"text_config": {"rope_parameters": {"mrope_section": [1, 1, 1]}}}, "add up to 4, got"),
    ],
)
def test_what_it_can_not_follow_is_refused(overrides: dict[str, Any], why: str, folder: Path, catalog: Any) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(folder, FAMILY, overrides=overrides), catalog)


def test_engine_in_chunks_with_prefixes_and_preemption(
    folder: Path, shower: Any, prompts: dict[int, Prompt], picture: Any, clip: Any, check_engine: Any
) -> None:
    shows = shower(folder, FAMILY)
    shown = [*prompts.values(), shows.place([*b"see", *see("image"), *b"here"], [picture(40, 60)], **SMALL)]
    roomy, expected = check_engine(folder, shown, 5, length=128, longest=256, step=16, tokens=24)
    assert expected[0] != expected[-1]
    clip_and_picture = {"video": (clip(5, 40, 24).frames, clip(5, 40, 24).times), "image": picture(24, 24).pixels}
    text = "<|begin_of_video|><|video|><|end_of_video|>and<|begin_of_image|><|image|><|end_of_image|>"
    prompt = {"prompt": text, "multi_modal_data": clip_and_picture, "mm_processor_kwargs": SMALL}
    assert roomy.ask(prompt, 24) == expected[3]
