"""Qwen2-VL and Qwen2.5-VL give transformers' inputs, positions, embeddings, logits and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from lsv.media.processor import Content, Video
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest, CheckpointError
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import check_shown, encode
from lsv_testing.tensors import place

START, END, IMAGE, VIDEO = 259, 260, 261, 262
SMALL = {"min_pixels": 256, "max_pixels": 1024}
FAMILIES = ("qwen2_vl", "qwen2_5_vl")


def see(placeholder: int) -> list[int]:
    return [START, placeholder, END]


class Reference:
    """transformers' own model over a checkpoint."""

    def __init__(self, folder: Path) -> None:
        import transformers

        architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
        self.model = getattr(transformers, architecture).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        self.shown: dict[int, Prompt] = {}

    def positions(self, placed: Prompt, ids: Sequence[int]) -> tuple[torch.Tensor, int]:
        """[3, ids], and what is added to an index behind them."""
        kinds = torch.zeros(len(ids), dtype=torch.int)
        for media in placed.media:
            kinds[media.start : media.stop] = 1 if media.modality == "image" else 2
        clips = [media for media in placed.media if media.modality == "video"]
        pace = [_read(media, "pace", np.float32) / 2 for media in clips if "pace" in media.inputs]
        found, offset = self.model.model.get_rope_index(
            torch.tensor([ids]), kinds[None],
            image_grid_thw=_grids(placed, "image"), video_grid_thw=_grids(placed, "video"),
            **({"second_per_grid_ts": torch.tensor(np.array(pace).ravel())} if pace else {}),
        )  # fmt: skip
        return found[:, 0], int(offset)

    @torch.inference_mode()
    def embeddings(self, media: Any) -> torch.Tensor:
        pixels = torch.from_numpy(_patches(media))
        grid = torch.from_numpy(_read(media, "grid", np.int64))[None]
        return self.model.model.get_image_features(pixels, grid).pooler_output[0]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        placed = self.shown[number]
        x = self.model.get_input_embeddings()(torch.tensor(ids))
        for media in placed.media:
            x[media.start : media.stop] = self.embeddings(media)
        places = self.positions(placed, ids)[0][:, None]
        found: torch.Tensor = self.model(inputs_embeds=x[None], position_ids=places, use_cache=False).logits[0]
        return found


def _read(media: Any, name: str, dtype: Any) -> Any:
    array = media.inputs[name]
    return np.frombuffer(array.data, dtype).reshape(array.shape).copy()


def _patches(media: Any) -> Any:
    """As transformers has them, each with all its frames: [patches, features]."""
    factor, offset = _read(media, "levels", np.float32)[:, :, None, None]
    pixels = _read(media, "pixel_values", np.uint8) * factor - offset
    return np.repeat(pixels, 2 // pixels.shape[2], axis=2).reshape(len(pixels), -1)


def _grids(placed: Prompt, modality: str) -> torch.Tensor | None:
    found = [_read(media, "grid", np.int64) for media in placed.media if media.modality == modality]
    return torch.tensor(np.array(found)) if found else None


@pytest.fixture(scope="session")
def prompts(picture: Any, clip: Any) -> Callable[[Any], dict[int, Prompt]]:
    """Mixed sizes, two pictures, a picture and a clip, text alone."""

    def make(shows: Any) -> dict[int, Prompt]:
        return {
            0: shows.place([*b"see", *see(IMAGE), *b"here"], [picture(60, 40)], **SMALL),
            1: shows.place([*see(IMAGE), *see(IMAGE), *b"?"], [picture(28, 28), picture(20, 70, 1)], **SMALL),
            2: shows.place([*b"nothing to see"], []),
            3: shows.place([*see(VIDEO), *b"and", *see(IMAGE)], [clip(5, 40, 24), picture(24, 24)], **SMALL),
        }

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_embeddings_logits_and_tokens_equal_transformers(
    family: str, checkpoint: Callable[..., Path], catalog: Any, shower: Any, prompts: Any
) -> None:
    folder = checkpoint(family)
    reference = Reference(folder)
    shown = reference.shown = prompts(shower(folder, family))
    declared = load(engine_config(folder, family), catalog)
    for placed in shown.values():
        for media in placed.media:
            ours = encode(declared.model.encoder, media.inputs)
            torch.testing.assert_close(ours, reference.embeddings(media), atol=1e-4, rtol=1e-4)
        if placed.positions is not None:
            theirs, offset = reference.positions(placed, placed.ids)
            ours = np.frombuffer(placed.positions.data, np.int32).reshape(3, -1)
            assert ours.tolist() == theirs.tolist()
            assert placed.positions.offset == offset < 0
    check_shown(engine_config(folder, family), catalog, shown, reference.logits)


def test_pictures_are_prepared_as_transformers_does(checkpoint: Callable[..., Path], shower: Any, picture: Any) -> None:
    from transformers import AutoImageProcessor

    folder = checkpoint("qwen2_vl")
    shows, theirs = shower(folder, "qwen2_vl"), AutoImageProcessor.from_pretrained(folder, backend="pil")
    for size in ((60, 40), (8, 8), (200, 3), (3, 200), (1, 1), (90, 90)):
        media = shows.place([IMAGE], [picture(*size)]).media[0]
        made = theirs(images=Image.fromarray(picture(*size).pixels), return_tensors="np")
        np.testing.assert_allclose(_patches(media), made["pixel_values"], rtol=0, atol=1e-6)
        assert _read(media, "grid", np.int64).tolist() == made["image_grid_thw"][0].tolist()
        assert media.count == made["image_grid_thw"].prod() // 4


def test_clips_are_pairs_of_frames(checkpoint: Callable[..., Path], shower: Any, clip: Any) -> None:
    shows = shower(checkpoint("qwen2_vl"), "qwen2_vl")
    made: Video = clip(3, 32, 24)
    media = shows.place([VIDEO], [made], min_pixels=768, max_pixels=1024).media[0]
    assert _read(media, "grid", np.int64).tolist() == [2, 6, 8]
    frames = np.concatenate((made.frames, made.frames[-1:])).transpose(0, 3, 1, 2) / 255
    mean, std = ([[[x]] for x in shows.processor._processor.__dict__[name]] for name in ("image_mean", "image_std"))
    # pairs, frames, channels, rows of merged patches, of patches, of pixels, and columns of these
    cut = ((frames - mean) / std).reshape(2, 2, 3, 3, 2, 4, 4, 2, 4)
    expected = cut.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(96, -1)
    np.testing.assert_allclose(_patches(media), expected, atol=1e-5)


@pytest.mark.parametrize(("family", "times"), [("qwen2_vl", [0, 1, 2, 3]), ("qwen2_5_vl", [0, 4, 8, 12])])
def test_text_goes_on_behind_the_largest_place(
    family: str, times: list[int], checkpoint: Callable[..., Path], shower: Any, clip: Any
) -> None:
    shows = shower(checkpoint(family), family)
    placed = shows.place([*b"ab", *see(VIDEO), *b"c"], [clip(8, 16, 24, fps=1.0)], min_pixels=384, max_pixels=384)
    assert placed.positions is not None
    found = np.frombuffer(placed.positions.data, np.int32).reshape(3, -1)
    assert _read(placed.media[0], "grid", np.int64).tolist() == [4, 6, 4]
    assert sorted(set(found[0, 3:27].tolist())) == [3 + time for time in times]
    assert found[1, 3:9].tolist() == [3, 3, 4, 4, 5, 5]
    assert found[2, 3:9].tolist() == [3, 4, 3, 4, 3, 4]
    behind = 3 + max(times[-1], 2) + 1
    assert found[:, 27:].tolist() == [[behind, behind + 1]] * 3
    assert placed.positions.offset == behind + 2 - len(placed.ids)


@pytest.mark.parametrize(
    ("content", "options", "why"),
    [
        ("picture", {"max_pixels": 4097}, "max_pixels may be at most 4096, got 4097"),
        ("picture", {"min_pixels": 2048, "max_pixels": 1024}, "min_pixels=2048 is more than max_pixels=1024"),
        ("picture", {"max_pixels": "big"}, "max_pixels must be a positive whole number, got 'big'"),
        ("picture", {"size": 7}, "no option size: it takes min_pixels, max_pixels, fps, num_frames"),
        ("thin", {}, "900 x 4 is too thin"),
        ("slow", {"min_pixels": 64, "max_pixels": 64}, "too small for the time between them"),
    ],
)
def test_what_it_can_not_take_is_refused(
    content: str,
    options: dict[str, Any],
    why: str,
    checkpoint: Callable[..., Path],
    shower: Any,
    picture: Any,
    clip: Any,
) -> None:
    shows = shower(checkpoint("qwen2_5_vl"), "qwen2_5_vl")
    contents: dict[str, Content] = {
        "picture": picture(30, 40), "thin": picture(900, 4), "slow": clip(6, 8, 8, fps=0.1),
    }  # fmt: skip
    with pytest.raises(BadRequest, match=why):
        shows.place([VIDEO if content == "slow" else IMAGE], [contents[content]], **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_published_configs_and_names_are_flat(
    family: str, checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path
) -> None:
    folder = checkpoint(family)
    expected = load(engine_config(folder, family), catalog).model.state_dict()
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    flat = {
        **text, **config, "rope_theta": rope["rope_theta"],
        "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]},
    }  # fmt: skip
    flat["vision_config"]["in_chans"] = flat["vision_config"].pop("in_channels")
    flat["vision_config"]["spatial_patch_size"] = flat["vision_config"]["patch_size"]
    (tmp_path / "config.json").write_text(json.dumps(flat))
    stored = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): value
        for name, value in load_file(folder / "model.safetensors").items()
    }
    later = {
        f"model.{name}" if name.startswith("visual") else name.replace("model.", "model.language_model.", 1): value
        for name, value in stored.items()
    }
    assert {name.split(".")[0] for name in stored} == {"model", "visual", "lm_head"}
    for names in (stored, later):
        save_file(names, tmp_path / "model.safetensors")
        declared = load(engine_config(tmp_path, family), catalog)
        found = declared.model.state_dict()
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert all(layer.window is None for layer in declared.layers)


def test_the_published_sizes_fit(catalog: Any, tmp_path: Path) -> None:
    tokens = {
        "vision_start_token_id": 151652, "vision_end_token_id": 151653, "vision_token_id": 151654,
        "image_token_id": 151655, "video_token_id": 151656,
    }  # fmt: skip
    text = {
        "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu",
        "initializer_range": 0.02, "max_position_embeddings": 32768, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.41.2", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, **tokens,
    }  # fmt: skip
    qwen2 = {
        **text, "hidden_size": 1536, "intermediate_size": 8960, "max_window_layers": 28, "num_attention_heads": 12,
        "num_hidden_layers": 28, "model_type": "qwen2_vl",
        "vision_config": {
            "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3, "hidden_size": 1536,
            "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2,
        },
    }  # fmt: skip
    qwen25 = {
        **text, "hidden_size": 2048, "intermediate_size": 11008, "max_window_layers": 70, "num_attention_heads": 16,
        "num_hidden_layers": 36, "model_type": "qwen2_5_vl",
        "vision_config": {
            "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
            "in_chans": 3, "out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
            "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 2,
            "temporal_patch_size": 2,
        },
    }  # fmt: skip
    for offer, config, parameters in (("qwen2_vl", qwen2, 2_208_985_600), ("qwen2_5_vl", qwen25, 3_754_622_976)):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert stored_bytes(declare(engine_config(tmp_path, offer), catalog)) == 4 * parameters


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"vision_config": {"deepstack_visual_indexes": [1]}}, "keys Qwen25VL's vision_config does not know"),
        ({"future_layers": 3}, "keys Qwen25VL does not know .*future_layers"),
        ({"vision_config": {"window_size": 7}}, "window_size must be at least 8"),
        ({"video_token_id": 320}, "video_token_id is 320, but the vocabulary ends at 320"),
        ({"text_config": {"rope_parameters": {"mrope_section": [2, 3, 4]}}}, "add up to 8, got"),
    ],
)
def test_what_it_can_not_follow_is_refused(
    overrides: dict[str, Any], why: str, checkpoint: Callable[..., Path], catalog: Any
) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(checkpoint("qwen2_5_vl"), "qwen2_5_vl", overrides=overrides), catalog)


def test_embeddings_come_with_their_places(
    checkpoint: Callable[..., Path], catalog: Any, shower: Any, picture: Any, engine: Any
) -> None:
    folder = checkpoint("qwen2_5_vl")
    placed = shower(folder, "qwen2_5_vl").place([*b"see", *see(IMAGE)], [picture(60, 40)], **SMALL)
    rows = encode(load(engine_config(folder, "qwen2_5_vl"), catalog).model.encoder, placed.media[0].inputs)
    grid = _read(placed.media[0], "grid", np.int64)
    one = engine(folder)

    def ask(kind: str, given: dict[str, Any]) -> list[int]:
        text = f"see<|vision_start|><|{kind}_pad|><|vision_end|>"
        return one.ask({"prompt": text, "multi_modal_data": {kind: {"embeddings": rows, **given}}}, 8)

    assert ask("image", {"grid": grid}) == one.answer([placed])[0]
    for kind, given, why in (
        ("image", {}, "needs 'grid' in addition to embeddings"),
        ("image", {"grid": [1, 4, 4]}, "12 embeddings are no grid of .1, 4, 4. patches"),
        ("image", {"grid": []}, "12 embeddings are no grid"),
        ("video", {"grid": grid}, "needs 'pace' in addition to embeddings"),
        ("video", {"grid": [3, 2, 8], "pace": [9.0]}, "too small for the time between them"),
    ):
        with pytest.raises(BadRequest, match=why):
            ask(kind, given)


def test_every_rank_holds_the_whole_tower(checkpoint: Callable[..., Path]) -> None:
    from lsv_models.qwen2_5_vl import Qwen25VL

    config = json.loads((checkpoint("qwen2_5_vl") / "config.json").read_text())
    whole, share = (Qwen25VL(place(rank=rank, size=size), config, 64) for rank, size in ((0, 1), (1, 2)))
    assert _shapes(share.encoder) == _shapes(whole.encoder)
    assert _shapes(share.layers) != _shapes(whole.layers)


def _shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in module.named_parameters()}


def test_engine_in_chunks_with_prefixes_and_preemption(
    checkpoint: Callable[..., Path], shower: Any, prompts: Any, picture: Any, clip: Any, check_engine: Any
) -> None:
    folder = checkpoint("qwen2_5_vl")
    shows = shower(folder, "qwen2_5_vl")
    shown = [*prompts(shows).values(), shows.place([*b"see", *see(IMAGE), *b"here"], [picture(40, 60)], **SMALL)]
    roomy, expected = check_engine(folder, shown, 5, length=128, longest=256, step=16, tokens=56)
    assert expected[0] != expected[4]
    clip_and_picture = {"video": (clip(5, 40, 24).frames, clip(5, 40, 24).times), "image": picture(24, 24).pixels}
    text = "<|vision_start|><|video_pad|><|vision_end|>and<|vision_start|><|image_pad|><|vision_end|>"
    prompt = {"prompt": text, "multi_modal_data": clip_and_picture, "mm_processor_kwargs": SMALL}
    assert roomy.ask(prompt, 56) == expected[3]
