"""Qwen3-VL, dense and sparse, gives transformers' inputs, positions, embeddings, logits and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv.media.processor import Video
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.families.glm4v import fit
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import check_shown, encode

from .conftest import SMALL, DeepReference, PairsReference, check_pairs, deep_features, patches, read, show_pairs

FAMILIES = {"qwen3_vl": "Qwen3VLForConditionalGeneration", "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration"}
START, END, IMAGE, VIDEO = range(259, 263)


def see(modality: str) -> list[int]:
    return [START, IMAGE if modality == "image" else VIDEO, END]


@pytest.fixture(scope="session")
def folder(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint("qwen3_vl")


@pytest.fixture(scope="session")
def prompts(folder: Path, shower: Any, picture: Any, clip: Any) -> dict[int, Prompt]:
    return show_pairs(shower(folder, "qwen3_vl"), see, picture, clip)


class Qwen3VLReference(DeepReference, PairsReference):
    @torch.inference_mode()
    def embeddings(self, media: Any) -> torch.Tensor:
        """With what goes deeper."""
        pixels, grid = torch.from_numpy(patches(media)), torch.from_numpy(read(media, "grid"))[None]
        return deep_features(self.model.model.get_image_features(pixels, grid))


@pytest.mark.parametrize(("hidden", "inner"), [(64, 32), (64, 64)], ids=["square gate and up", "square down"])
@pytest.mark.parametrize("published", [False, True])
def test_experts_whose_order_one_shape_does_not_tell(
    hidden: int, inner: int, published: bool, checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path
) -> None:
    """transformers saves outputs first, published checkpoints have inputs first; a square tensor is ambiguous."""
    folder = checkpoint("qwen3_vl_moe")
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    text["moe_intermediate_size"] = inner
    tensors = load_file(folder / "model.safetensors")
    shapes = {"gate_up_proj": (2 * inner, hidden), "down_proj": (hidden, inner)}
    for name in tensors:
        if ".experts." in name:
            tensors[name] = torch.randn(len(tensors[name]), *shapes[name.rpartition(".")[2]]) * 0.2
    stored = {name: tensor.mT.contiguous() if ".experts." in name and published else tensor
              for name, tensor in tensors.items()}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(stored, tmp_path / "model.safetensors")
    model: Any = load(engine_config(tmp_path, "qwen3_vl_moe"), catalog).model
    moe = model.layers[0].mlp
    x = torch.randn(5, hidden)
    gate_up, down = (tensors[f"model.language_model.layers.0.mlp.experts.{part}_proj"] for part in ("gate_up", "down"))
    logits = x @ tensors["model.language_model.layers.0.mlp.gate.weight"].T
    shares, chosen = logits.softmax(-1).topk(text["num_experts_per_tok"])
    expected = torch.zeros_like(x)
    for row, (places, weights) in enumerate(zip(chosen, shares / shares.sum(-1, keepdim=True), strict=True)):
        for expert, weight in zip(places, weights, strict=True):
            gate, up = (gate_up[expert] @ x[row]).chunk(2)
            expected[row] += weight * (down[expert] @ (torch.nn.functional.silu(gate) * up))
    torch.testing.assert_close(moe(x), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_embeddings_logits_and_tokens_equal_transformers(
    family: str, checkpoint: Callable[..., Path], catalog: Any, prompts: dict[int, Prompt]
) -> None:
    folder = checkpoint(family)
    reference = Qwen3VLReference(folder, FAMILIES[family], prompts)
    reference.check(load(engine_config(folder, family), catalog).model.encoder)
    check_shown(engine_config(folder, family), catalog, prompts, reference.logits)


def test_frames_are_sized_as_in_transformers() -> None:
    """An odd number of them, too."""
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

    draw = np.random.default_rng(0)
    for frames, height, width, least, most in draw.integers(
        (2, 5, 5, 1, 4000), (40, 900, 900, 4000, 900_000), (400, 5)
    ):
        bounds = (int(least), int(most))
        theirs = smart_resize(int(frames), int(height), int(width), 2, 32, *bounds)
        assert fit(int(frames), (int(height), int(width)), 32, bounds) == theirs


@pytest.mark.parametrize("fps", [2.0, 10.0, 0.03])
def test_clips_are_pairs_of_frames_behind_their_seconds(fps: float, folder: Path, shower: Any, clip: Any) -> None:
    """As transformers writes them, and without the marks that templates write around the whole."""
    from transformers import Qwen3VLProcessor

    shows = shower(folder, "qwen3_vl")
    made: Video = clip(5, 32, 24, fps=fps)
    placed = shows.place([*b"a", *see("video"), *b"b"], [made], min_pixels=5 * 768, max_pixels=5 * 1024)
    theirs: Any = SimpleNamespace(
        video_token="v", vision_start_token="[", vision_end_token="]",
        video_processor=SimpleNamespace(merge_size=2, temporal_patch_size=2),
    )  # fmt: skip
    theirs._calculate_timestamps = lambda *given: Qwen3VLProcessor._calculate_timestamps(theirs, *given)
    seen = {
        "video_grid_thw": np.array([[3, 6, 8]]),
        "video_metadata": [SimpleNamespace(fps=fps, frames_indices=list(range(5)))],
    }
    marks = {START: "[", END: "]", VIDEO: "v"}
    text = Qwen3VLProcessor.replace_video_token(theirs, seen, 0)
    assert "".join(marks.get(id) or chr(id) for id in placed.ids) == f"a{text}b"
    check_pairs(placed, made)


def test_a_clip_without_marks_and_marks_of_pictures_stay(folder: Path, shower: Any, picture: Any, clip: Any) -> None:
    shows = shower(folder, "qwen3_vl")
    framed = shows.place([*see("video"), *see("image")], [clip(2, 24, 24), picture(24, 24)], **SMALL)
    bare = shows.place([VIDEO, *see("image")], [clip(2, 24, 24), picture(24, 24)], **SMALL)
    assert framed.ids == bare.ids
    assert [START, IMAGE] in [list(pair) for pair in zip(framed.ids, framed.ids[1:], strict=False)]
    assert framed.ids[-1] == END


def test_embeddings_come_with_what_goes_deeper(
    folder: Path, catalog: Any, shower: Any, picture: Any, engine: Any
) -> None:
    placed = shower(folder, "qwen3_vl").place([*b"see", *see("image")], [picture(60, 40)], **SMALL)
    rows = encode(load(engine_config(folder, "qwen3_vl"), catalog).model.encoder, placed.media[0].inputs)
    grid = read(placed.media[0], "grid")
    one = engine(folder)

    def ask(kind: str, rows: Any) -> list[int]:
        given = {kind: {"embeddings": rows, "grid": grid}}
        text = f"see<|vision_start|><|{kind}_pad|><|vision_end|>"
        return one.ask({"prompt": text, "multi_modal_data": given}, 8)

    assert rows.shape[1] == 3 * 64
    assert ask("image", rows) == one.answer([placed])[0]
    with pytest.raises(BadRequest, match=r"finite numbers \[count, 192\], got \[24, 64\]"):
        ask("image", rows[:, :64])
    with pytest.raises(BadRequest, match="embeddings of a video have no seconds"):
        ask("video", rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_published_configs_and_names(
    family: str, checkpoint: Callable[..., Path], catalog: Any, tmp_path: Path
) -> None:
    """With the older keys of ropes, and experts whose inputs come first."""
    folder = checkpoint(family)
    expected = load(engine_config(folder, family), catalog).model.state_dict()
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    if family == "qwen3_vl_moe":
        text["norm_topk_prob"] = True
    config["vision_config"] |= {"model_type": family}
    del config["vision_config"]["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = load_file(folder / "model.safetensors")
    experts = [name for name in stored if ".experts." in name]
    assert bool(experts) == (family == "qwen3_vl_moe")
    save_file(stored | {name: stored[name].mT.contiguous() for name in experts}, tmp_path / "model.safetensors")
    found = load(engine_config(tmp_path, family), catalog).model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_published_sizes_fit(catalog: Any, tmp_path: Path) -> None:
    vision = {
        "deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024,
        "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4096, "model_type": "qwen3_vl",
        "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2560, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16",
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02,
        "intermediate_size": 9728, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 151936,
    }  # fmt: skip
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655, "model_type": "qwen3_vl",
        "text_config": text, "tie_word_embeddings": True, "transformers_version": "4.57.0.dev0",
        "video_token_id": 151656, "vision_config": vision, "vision_end_token_id": 151653,
        "vision_start_token_id": 151652,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert stored_bytes(declare(engine_config(tmp_path, "qwen3_vl"), catalog)) == 4 * 4_437_815_808


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"vision_config": {"future_layers": 3}}, "keys Qwen3VL's vision_config does not know"),
        ({"vision_config": {"deepstack_visual_indexes": [2, 0]}}, r"must ascend and be below 3, got \[2, 0\]"),
        ({"vision_config": {"deepstack_visual_indexes": [3]}}, "must ascend and be below 3"),
        ({"vision_config": {"num_position_embeddings": 35}}, "those of a square, got 35"),
        ({"vision_config": {"out_hidden_size": 32}}, "features of 32 numbers for the first 2 layers"),
        ({"text_config": {"num_hidden_layers": 1}}, "but the language model has 1 layers of 64"),
        ({"text_config": {"rope_parameters": {"mrope_interleaved": False}}}, "mrope_interleaved must be true"),
        ({"image_token_id": 320}, "image_token_id is 320, but the vocabulary ends at 320"),
    ],
)
def test_what_it_can_not_follow_is_refused(overrides: dict[str, Any], why: str, folder: Path, catalog: Any) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(folder, "qwen3_vl", overrides=overrides), catalog)


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_in_chunks_with_prefixes_and_preemption(
    family: str,
    checkpoint: Callable[..., Path],
    shower: Any,
    prompts: dict[int, Prompt],
    picture: Any,
    clip: Any,
    check_engine: Any,
) -> None:
    folder = checkpoint(family)
    shows = shower(folder, "qwen3_vl")
    shown = [*prompts.values(), shows.place([*b"see", *see("image"), *b"here"], [picture(40, 60)], **SMALL)]
    roomy, expected = check_engine(folder, shown, 5, length=160, longest=256, step=16, tokens=56)
    assert expected[0] != expected[-1]
    clip_and_picture = {"video": (clip(5, 40, 24).frames, clip(5, 40, 24).times), "image": picture(24, 24).pixels}
    text = "<|vision_start|><|video_pad|><|vision_end|>and<|vision_start|><|image_pad|><|vision_end|>"
    prompt = {"prompt": text, "multi_modal_data": clip_and_picture, "mm_processor_kwargs": SMALL}
    assert roomy.ask(prompt, 56) == expected[3]


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "xpu", "hpu"])
def test_any_platform_answers_the_same(platform: str, folder: Path, prompts: dict[int, Prompt], engine: Any) -> None:
    shown, sizes = list(prompts.values()), {"max_num_seqs": 4, "num_gpu_blocks_override": 32}
    made = engine(folder, platform=platform, emulate=True, block_size=128 if platform == "hpu" else 64, **sizes)
    assert made.answer(shown, 16) == engine(folder).answer(shown, 16)


@pytest.mark.slow
def test_two_ranks_answer_as_one(folder: Path, prompts: dict[int, Prompt], engine: Any) -> None:
    shown = list(prompts.values())
    assert engine(folder, tensor_parallel_size=2).answer(shown) == engine(folder).answer(shown)
