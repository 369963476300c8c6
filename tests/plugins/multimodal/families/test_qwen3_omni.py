"""Qwen3-Omni's thinker gives transformers' inputs, order, positions, embeddings, logits and tokens."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lsv.media.processor import Audio
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.families.whisper.audio import RATE
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import check_shown, encode

from .conftest import SMALL as SEEN
from .conftest import DeepReference, deep_features, read, sound
from .omni import (
    AUDIO,
    BOTH,
    HEAR,
    IMAGE,
    SMALL,
    VIDEO,
    OmniReference,
    check_films,
    check_silent,
    check_stored,
    check_turns,
    see,
)

FAMILY, OFFER = "qwen3_omni_moe_thinker", "qwen3_omni"


@pytest.fixture(scope="session")
def folder(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint(FAMILY)


@pytest.fixture(scope="session")
def prompts(folder: Path, shower: Any, picture: Any, clip: Any, talkie: Any) -> dict[int, Prompt]:
    """Text, pictures, clips and sounds by themselves and together; clips with more sound than pictures, with less, and
    higher than they last; sounds of less than a second, of whole seconds and of more than a window, which is two here.
    """
    shows = shower(folder, OFFER)
    return {
        0: shows.place([*b"see", *see(IMAGE), *b"hear", *HEAR], [picture(60, 40), sound(1, 1.7)], **SMALL),
        1: shows.place([*HEAR, *HEAR, *b"?", *see(IMAGE)], [sound(2, 1.0), sound(3, 2.31), picture(28, 28)], **SMALL),
        2: shows.place([*b"nothing to hear"], []),
        3: shows.place([*see(VIDEO), *b"and", *HEAR, *b"."], [clip(5, 40, 24), sound(4, 0.35)], **SMALL),
        4: shows.place([*b"only ", *HEAR], [sound(5, 4.56)]),
        5: shows.place([*b"watch", *see(VIDEO), *b"and hear"], [talkie(4, 40, 24, 1.9)], **BOTH),
        6: shows.place([*see(VIDEO), *b"now", *see(IMAGE), *HEAR], [talkie(6, 24, 40, 1.0), picture(30, 20), sound(6)],
                       **BOTH),
        7: shows.place([*see(VIDEO), *see(VIDEO), *b"."], [talkie(2, 24, 24, 1.7), talkie(7, 40, 24, 2.0)], **BOTH),
        8: shows.place([*b"two", *see(IMAGE), *see(IMAGE)], [picture(60, 40), picture(40, 60, 1)], **SEEN),
        9: shows.place([*b"tall", *see(VIDEO), *b"behind"], [talkie(2, 16, 64, 0.4)], **BOTH),
    }  # fmt: skip


class Qwen3OmniReference(DeepReference, OmniReference):
    def seen(self, pixels: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return deep_features(self.model.model.get_image_features(pixels, grid))

    def heard(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(rows, (0, 2 * rows.shape[1]))


@pytest.mark.row("F-667", "F-710")
def test_positions_embeddings_logits_and_tokens_equal_transformers(
    folder: Path, catalog: Any, prompts: dict[int, Prompt]
) -> None:
    reference = Qwen3OmniReference(folder, "Qwen3OmniMoeThinkerForConditionalGeneration", prompts)
    reference.check(load(engine_config(folder, OFFER), catalog).model.encoder)
    for number, placed in prompts.items():
        torch.testing.assert_close(reference.logits(number, placed.ids), reference.whole(placed), atol=1e-4, rtol=1e-4)
    check_shown(engine_config(folder, OFFER), catalog, prompts, reference.logits)


@pytest.mark.parametrize("seconds", [0.0126, 0.08, 0.5, 0.995, 1.0, 1.2345, 2.0, 9.999])
def test_sounds_are_heard_as_transformers_hears_them(seconds: float, folder: Path, shower: Any) -> None:
    from transformers import Qwen3OmniMoeProcessor, WhisperFeatureExtractor
    from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

    content = sound(9, seconds)
    made = shower(folder, OFFER).place([AUDIO], [content]).media[0]
    extractor: Any = WhisperFeatureExtractor.from_pretrained(folder)
    options = {**Qwen3OmniMoeProcessor.audio_kwargs, "return_tensors": "np"}
    theirs = extractor(content.samples, **options)
    frames = int(theirs.attention_mask.sum())
    assert theirs.input_features.shape[2] == frames
    np.testing.assert_allclose(read(made, "features"), theirs.input_features[0], rtol=0, atol=1e-4)
    assert made.count == _get_feat_extract_output_lengths(frames)


@pytest.mark.parametrize(
    ("frames", "seconds", "fps"), [(4, 1.9, 2.0), (8, 0.2, 1.0), (3, 2.0, 4.0), (6, 1.1, 3.0), (2, 0.03, 0.5)]
)
def test_what_is_seen_and_heard_stands_in_the_order_of_transformers(
    frames: int, seconds: float, fps: float, talkie: Any, folder: Path, shower: Any
) -> None:
    from transformers import Qwen3OmniMoeProcessor

    film = talkie(frames, 40, 56, seconds, fps)
    check_turns(Qwen3OmniMoeProcessor, shower(folder, OFFER), film, fps, position_id_per_seconds=13)


def test_times_between_places_are_rounded(folder: Path, talkie: Any, clip: Any, shower: Any) -> None:
    """transformers turns heads by fractions of a place."""
    shows = shower(folder, OFFER)
    films = [*[clip(8, 40, 24, fps) for fps in (3.0, 1.9, 2.02)], *[talkie(8, 40, 24, 1.5, fps) for fps in (3.0, 1.9)]]
    shown = {number: shows.place([*b"a", *see(VIDEO), *b"b"], [film], **BOTH) for number, film in enumerate(films)}
    reference = Qwen3OmniReference(folder, "Qwen3OmniMoeThinkerForConditionalGeneration", shown)
    for placed in shown.values():
        theirs, _ = reference.positions(placed)
        assert placed.positions is not None
        ours = np.frombuffer(placed.positions.data, np.int32).reshape(3, -1)
        assert not np.array_equal(theirs.numpy(), theirs.numpy().round())
        assert np.abs(ours - theirs.numpy()).max() <= 0.5
        assert placed.positions.offset <= 0


def test_without_the_option_or_without_sound_a_clip_is_what_is_seen(
    folder: Path, shower: Any, talkie: Any, clip: Any
) -> None:
    check_silent(
        shower(folder, OFFER), clip(4, 40, 24), sounding=talkie(4, 40, 24, 1.0), hardly=talkie(4, 40, 24, 0.009)
    )


def test_sounds_it_can_not_take_are_refused(folder: Path, shower: Any) -> None:
    shows = shower(folder, OFFER)
    with pytest.raises(BadRequest, match="the audio is too short: it must last at least 10 ms"):
        shows.place([AUDIO], [sound(1, 0.0099)])
    with pytest.raises(BadRequest, match=r"the audio lasts 2400\.5 s, and the model hears 2400 s"):
        shows.processor.process(Audio(np.broadcast_to(np.float32(0), int(2400.5 * RATE)), RATE), {})


def test_a_clip_whose_frames_are_too_small_for_their_times_is_refused(folder: Path, shower: Any, clip: Any) -> None:
    with pytest.raises(BadRequest, match="too small for the time between them: ask for more with fps"):
        shower(folder, OFFER).place(see(VIDEO), [clip(4, 24, 24, fps=0.2)], **SMALL)


@pytest.mark.parametrize("whole", [True, False])
def test_checkpoints_of_the_whole_model_and_of_the_thinker(
    whole: bool, folder: Path, catalog: Any, tmp_path: Path
) -> None:
    """As published: a config of several parts, older names of keys, weights that speak."""
    thinker = json.loads((folder / "config.json").read_text())
    text, vision, audio = (thinker[f"{part}_config"] for part in ("text", "vision", "audio"))
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {**rope, "interleaved": True, "type": "default"}}
    text |= {"use_qk_norm": True, "shared_expert_intermediate_size": 0, "use_sliding_window": False}
    vision |= {"apply_vit_abs_pos_embed": True, "image_size": 768, "in_chans": 3, "tokens_per_second": 2}
    for part in (vision, audio):
        part |= {"tie_word_embeddings": True, "top_k": 50}
    del vision["rope_parameters"]
    audio["num_hidden_layers"] = 2
    thinker |= {"seconds_per_chunk": 2, "tie_word_embeddings": False}
    stored = load_file(folder / "model.safetensors")
    config = {**thinker, "architectures": ["Qwen3OmniMoeThinkerForConditionalGeneration"]}
    if whole:
        config = {
            "architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe",
            "enable_audio_output": True, "thinker_config": thinker, "talker_config": {"accept_hidden_layer": 24},
            "code2wav_config": {"hidden_size": 8}, "im_end_token_id": 257, "tts_bos_token_id": 3,
        }  # fmt: skip
        stored = {f"thinker.{name}": value for name, value in stored.items()}
        stored |= {f"{part}.weight": torch.zeros(2) for part in ("talker.codec_head", "code2wav.decoder.0")}
    check_stored(engine_config(folder, OFFER), tmp_path, config, stored, catalog)


def test_the_published_sizes_fit(catalog: Any, tmp_path: Path) -> None:
    text = {
        "attention_bias": False, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 768, "max_position_embeddings": 65536, "mlp_only_layers": [],
        "model_type": "qwen3_omni_moe_text", "moe_intermediate_size": 768, "norm_topk_prob": True,
        "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 4,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000, "router_aux_loss_coef": 0.001,
        "rope_scaling": {
            "interleaved": True, "mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default",
            "type": "default",
        },
        "shared_expert_intermediate_size": 0, "sliding_window": None, "tie_word_embeddings": False, "use_cache": True,
        "use_qk_norm": True, "use_sliding_window": False, "vocab_size": 152064,
    }  # fmt: skip
    vision = {
        "apply_vit_abs_pos_embed": True, "deepstack_visual_indexes": [8, 16, 24], "depth": 27,
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1152, "image_size": 768, "in_channels": 3, "in_chans": 3,
        "intermediate_size": 4304, "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2048,
        "patch_size": 16, "spatial_merge_size": 2, "spatial_patch_size": 16, "temporal_patch_size": 2,
        "tokens_per_second": 2,
    }  # fmt: skip
    audio = {
        "activation_dropout": 0, "activation_function": "gelu", "conv_chunksize": 500, "d_model": 1280, "dropout": 0,
        "downsample_hidden_size": 480, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32,
        "max_source_positions": 1500, "n_window": 50, "n_window_infer": 800, "num_mel_bins": 128, "output_dim": 2048,
        "scale_embedding": False,
    }  # fmt: skip
    thinker = {
        "text_config": text, "vision_config": vision, "audio_config": audio, "position_id_per_seconds": 13,
        "seconds_per_chunk": 2, "initializer_range": 0.02, "audio_start_token_id": 151669, "audio_token_id": 151675,
        "image_token_id": 151655, "video_token_id": 151656, "user_token_id": 872,
    }  # fmt: skip
    config = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "thinker_config": thinker}
    (tmp_path / "config.json").write_text(json.dumps(config))
    others = 44 * 623_120_640  # of 48 layers, which are alike
    assert stored_bytes(declare(engine_config(tmp_path, OFFER), catalog)) == 4 * (31_719_205_488 - others)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"audio_config": {"conv_bias": 3}}, "keys Qwen3Omni's audio_config does not know"),
        ({"audio_config": {"scale_embedding": True}}, "keys Qwen3Omni's audio_config does not know"),
        ({"audio_config": {"n_window_infer": 99}}, "n_window_infer must be at least 100 frames, got 99"),
        ({"audio_config": {"output_dim": 32}}, "audio_config makes embeddings of 32, the text has 64"),
        ({"vision_config": {"out_hidden_size": 32}}, "the tower makes features of 32 numbers"),
        ({"vision_config": {"apply_vit_abs_pos_embed": False}}, "apply_vit_abs_pos_embed is False"),
        ({"text_config": {"rope_parameters": {"interleaved": False}}}, "interleaved must be true"),
        ({"text_config": {"use_qk_norm": False}}, "use_qk_norm is False"),
        ({"text_config": {"norm_topk_prob": False}}, "norm_topk_prob is False"),
        ({"text_config": {"shared_expert_intermediate_size": 8}}, "the text_config of Qwen3Omni"),
        ({"audio_token_id": 320}, "audio_token_id is 320, but the vocabulary ends at 320"),
        ({"future_layers": 3}, "keys Qwen3Omni does not know .*future_layers"),
    ],
)
def test_configs_it_can_not_follow_are_refused(overrides: dict[str, Any], why: str, folder: Path, catalog: Any) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(folder, OFFER, overrides=overrides), catalog)


def test_embeddings_come_with_what_goes_deeper_and_their_order(
    folder: Path, catalog: Any, shower: Any, talkie: Any, engine: Any
) -> None:
    placed = shower(folder, OFFER).place(see(VIDEO), [talkie(4, 40, 24, 1.9)], **BOTH)
    (media,) = placed.media
    rows = encode(load(engine_config(folder, OFFER), catalog).model.encoder, media.inputs)
    given = {name: read(media, name) for name in ("grid", "pace", "order")}
    one = engine(folder)

    def ask(rows: Any, **more: Any) -> list[int]:
        text = "<|vision_start|><|video_pad|><|vision_end|>"
        return one.ask({"prompt": text, "multi_modal_data": {"video": {"embeddings": rows, **given, **more}}}, 8)

    assert rows.shape[1] == 3 * 64
    assert len(ask(rows)) == 8
    with pytest.raises(BadRequest, match=r"finite numbers \[count, 192\]"):
        ask(rows[:, :64])
    with pytest.raises(BadRequest, match="order must name each"):
        ask(rows, order=np.zeros_like(given["order"]))


@pytest.mark.row("F-667", "F-710")
@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_the_sound_of_a_film_is_heard_where_it_is_asked_for(
    quantization: str | None, folder: Path, film: Any, engine: Any
) -> None:
    check_films(engine(folder, max_model_len=512, quantization=quantization), film)


def test_engine_in_chunks_with_prefixes_and_preemption(
    folder: Path, shower: Any, prompts: dict[int, Prompt], talkie: Any, check_engine: Any
) -> None:
    other = dataclasses.replace(talkie(4, 40, 24, 1.9), sound=sound(8, 1.8))
    shown = [*prompts.values(), shower(folder, OFFER).place([*b"watch", *see(VIDEO), *b"and hear"], [other], **BOTH)]
    _, expected = check_engine(folder, shown, 6, length=192, longest=256, step=16, tokens=60)
    assert len({tuple(answer) for answer in expected}) == len(expected), "media make no difference"


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
