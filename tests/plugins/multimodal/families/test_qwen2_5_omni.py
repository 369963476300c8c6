"""Qwen2.5-Omni's thinker gives transformers' inputs, turns, positions, embeddings, logits and tokens."""

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

from lsv import plugins
from lsv.media.items import Encoded
from lsv.media.options import Limits, MediaOptions
from lsv.media.processor import SOUND
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest, CheckpointError
from lsv_base.processes.side.process import SideProcess
from lsv_multimodal.decoding.audio import decode_track
from lsv_multimodal.decoding.video import decode_video
from lsv_multimodal.families.omni.qwen2_5 import TurnTempo
from lsv_multimodal.families.whisper.audio import RATE
from lsv_multimodal.worker.messages import Init, Prepare
from lsv_multimodal.worker.pool import media_worker
from lsv_runtime.worker.load.declared import declare
from lsv_testing.fakes.client import fake_config
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import check_shown, encode

from .conftest import read, sound
from .omni import (
    AUDIO,
    BOTH,
    HEAR,
    IMAGE,
    SMALL,
    SOUND_ENDS,
    SOUNDS,
    VIDEO,
    OmniReference,
    check_films,
    check_silent,
    check_stored,
    check_turns,
    see,
)

FAMILY, OFFER = "qwen2_5_omni_thinker", "qwen2_5_omni"
PER_SECOND, TURN = 4, 4


@pytest.fixture(scope="session")
def folder(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint(FAMILY)


@pytest.fixture(scope="session")
def prompts(folder: Path, shower: Any, picture: Any, clip: Any, talkie: Any) -> dict[int, Prompt]:
    """Pictures, clips and sounds by themselves and together; clips with more sound than pictures, and with less."""
    shows = shower(folder, OFFER)
    return {
        0: shows.place([*b"see", *see(IMAGE), *b"hear", *HEAR], [picture(60, 40), sound(1, 0.7)], **SMALL),
        1: shows.place([*HEAR, *HEAR, *b"?", *see(IMAGE)], [sound(2, 0.33), sound(3, 1.31), picture(28, 28)], **SMALL),
        2: shows.place([*b"nothing to hear"], []),
        3: shows.place([*see(VIDEO), *b"and", *HEAR, *b"."], [clip(5, 40, 24), sound(4, 0.05)], **SMALL),
        4: shows.place([*b"only ", *HEAR], [sound(5, 2.0)]),
        5: shows.place([*b"watch", *see(VIDEO), *b"and hear"], [talkie(4, 40, 24, 1.9)], **BOTH),
        6: shows.place([*see(VIDEO), *b"now", *see(IMAGE), *HEAR], [talkie(6, 24, 40, 0.4), picture(30, 20), sound(6)],
                       **BOTH),
        7: shows.place([*see(VIDEO), *see(VIDEO), *b"."], [talkie(2, 24, 24, 1.7), talkie(7, 40, 24, 2.0)], **BOTH),
    }  # fmt: skip


@pytest.mark.row("F-667", "F-709")
def test_positions_embeddings_logits_and_tokens_equal_transformers(
    folder: Path, catalog: Any, prompts: dict[int, Prompt]
) -> None:
    reference = OmniReference(folder, "Qwen2_5OmniThinkerForConditionalGeneration", prompts)
    declared = load(engine_config(folder, OFFER), catalog)
    reference.check(declared.model.encoder)
    for number, placed in prompts.items():
        torch.testing.assert_close(reference.logits(number, placed.ids), reference.whole(placed), atol=1e-4, rtol=1e-4)
    check_shown(engine_config(folder, OFFER), catalog, prompts, reference.logits)


@pytest.mark.parametrize("seconds", [0.03, 0.5, 1.2345, 1.999, 2.0])
def test_sounds_are_heard_as_transformers_hears_them(seconds: float, folder: Path, shower: Any) -> None:
    from transformers import WhisperFeatureExtractor
    from transformers.models.qwen2_5_omni.processing_qwen2_5_omni import _get_feat_extract_output_lengths

    content = sound(9, seconds)
    made = shower(folder, OFFER).place([AUDIO], [content]).media[0]
    extractor: Any = WhisperFeatureExtractor.from_pretrained(folder)
    theirs = extractor(content.samples, sampling_rate=RATE, return_attention_mask=True, return_tensors="np")
    frames = int(theirs.attention_mask.sum())
    np.testing.assert_allclose(read(made, "features"), theirs.input_features[0, :, :frames], rtol=0, atol=1e-4)
    assert made.count == _get_feat_extract_output_lengths(frames)


def test_what_is_seen_and_heard_takes_turns_as_in_transformers(talkie: Any, folder: Path, shower: Any) -> None:
    from transformers import Qwen2_5OmniProcessor

    tempo = {"position_id_per_seconds": PER_SECOND, "seconds_per_chunk": 1}
    for frames, seconds, fps in ((4, 1.9, 2.0), (8, 0.2, 1.0), (3, 2.0, 4.0), (6, 1.1, 3.0), (2, 0.03, 0.5)):
        film = talkie(frames, 40, 56, seconds, fps)
        check_turns(Qwen2_5OmniProcessor, shower(folder, OFFER), film, fps, **tempo)


def test_in_a_gap_over_several_turns_each_ends_one_further_on() -> None:
    turns = TurnTempo(25, 50).turns(np.array([0, 0, 120, 120, 130]), 60)
    assert [turn.tolist() for turn in turns] == [[0, 1], [*range(5, 55)], [2], [*range(55, 65)], [3, 4]]


def test_without_the_option_or_without_sound_a_clip_is_what_is_seen(
    folder: Path, shower: Any, talkie: Any, clip: Any
) -> None:
    check_silent(
        shower(folder, OFFER), clip(4, 40, 24), sounding=talkie(4, 40, 24, 1.0), hardly=talkie(4, 40, 24, 0.01)
    )


@pytest.mark.parametrize(
    ("seconds", "options", "why"),
    [
        (2.1, {}, "the audio lasts 2.1 s, and the model hears 2 s"),
        (0.02, {}, "the audio is too short"),
        (1.0, {SOUND: "yes"}, "use_audio_in_video must be true or false, got 'yes'"),
        (1.0, {"size": 7}, "no option size: it takes min_pixels, max_pixels, fps, num_frames, use_audio_in_video"),
    ],
)
def test_sounds_it_can_not_take_are_refused(
    seconds: float, options: dict[str, Any], why: str, folder: Path, shower: Any
) -> None:
    with pytest.raises(BadRequest, match=why):
        shower(folder, OFFER).place([AUDIO], [sound(1, seconds)], **options)


def test_a_clip_with_too_long_a_sound_is_refused(folder: Path, shower: Any, talkie: Any) -> None:
    with pytest.raises(BadRequest, match=r"the audio lasts 2.5 s, and the model hears 2 s"):
        shower(folder, OFFER).place([VIDEO], [talkie(4, 40, 24, 2.5)], **BOTH)


@pytest.mark.parametrize("whole", [True, False])
def test_checkpoints_of_the_whole_model_and_of_the_thinker(
    whole: bool, folder: Path, catalog: Any, tmp_path: Path
) -> None:
    """As published: a config of several parts, keys of a library's own, weights that speak."""
    thinker = json.loads((folder / "config.json").read_text())
    thinker["vision_config"] |= {"embed_dim": 32, "in_chans": 3, "tokens_per_second": 25, "spatial_patch_size": 4}
    for part in ("vision_config", "audio_config"):
        thinker[part] |= {"tie_word_embeddings": True, "top_k": 50, "init_std": 0.02}
    thinker["audio_config"]["num_hidden_layers"] = 2
    thinker["architectures"] = ["Qwen2OmniNaViTThinkerForConditionalGeneration"]
    stored = load_file(folder / "model.safetensors")
    config = {**thinker, "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"]}
    if whole:
        config = {
            "architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni", "enable_audio_output": True,
            "enable_talker": True, "thinker_config": thinker, "talker_config": {"hidden_size": 8},
            "token2wav_config": {"dit_config": {}}, "hidden_size": 64,
        }  # fmt: skip
        stored = {f"thinker.{name}": value for name, value in stored.items()}
        stored |= {f"{part}.weight": torch.zeros(2) for part in ("talker.codec_head", "token2wav.code2wav_dit_model")}
    check_stored(engine_config(folder, OFFER), tmp_path, config, stored, catalog)


def test_the_published_sizes_fit(catalog: Any, tmp_path: Path) -> None:
    text = {
        "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768,
        "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06, "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default"},
        "rope_theta": 1000000.0, "sliding_window": 32768, "use_sliding_window": False, "vocab_size": 152064,
        "tie_word_embeddings": False, "model_type": "qwen2_5_omni_text",
    }  # fmt: skip
    vision = {
        "depth": 32, "embed_dim": 1280, "fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu",
        "hidden_size": 1280, "in_channels": 3, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584,
        "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2,
        "tokens_per_second": 25, "window_size": 112,
    }  # fmt: skip
    audio = {
        "activation_function": "gelu", "d_model": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
        "encoder_layers": 32, "max_source_positions": 1500, "n_window": 100, "num_hidden_layers": 32,
        "num_mel_bins": 128, "output_dim": 3584, "scale_embedding": False,
    }  # fmt: skip
    thinker = {"text_config": text, "vision_config": vision, "audio_config": audio, "position_id_per_seconds": 25}
    config = {"architectures": ["Qwen2_5OmniForConditionalGeneration"], "thinker_config": thinker}
    (tmp_path / "config.json").write_text(json.dumps(config))
    unused = 2 * 3584  # embeddings of the marks around a sound, which the tower has and does not use
    zeros = 32 * 1280  # biases of keys, which stand beside those of queries and values
    assert stored_bytes(declare(engine_config(tmp_path, OFFER), catalog)) == 4 * (8_931_813_888 - unused + zeros)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"audio_config": {"conv_bias": 3}}, "keys Qwen25Omni's audio_config does not know"),
        ({"audio_config": {"scale_embedding": True}}, "keys Qwen25Omni's audio_config does not know"),
        ({"audio_config": {"output_dim": 32}}, "audio_config makes embeddings of 32, the text has 64"),
        ({"vision_config": {"out_hidden_size": 32}}, "vision_config makes embeddings of 32, the text has 64"),
        ({"vision_config": {"embed_dim": 64}}, "embed_dim is 64, and this architecture has 32"),
        ({"audio_token_index": 320}, "audio_token_index is 320, but the vocabulary ends at 320"),
        ({"future_layers": 3}, "keys Qwen25Omni does not know .*future_layers"),
    ],
)
def test_configs_it_can_not_follow_are_refused(overrides: dict[str, Any], why: str, folder: Path, catalog: Any) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(folder, OFFER, overrides=overrides), catalog)


def test_embeddings_come_with_their_turns(folder: Path, catalog: Any, shower: Any, talkie: Any, engine: Any) -> None:
    placed = shower(folder, OFFER).place(see(VIDEO), [talkie(4, 40, 24, 1.9)], **BOTH)
    (media,) = placed.media
    rows = encode(load(engine_config(folder, OFFER), catalog).model.encoder, media.inputs)
    given = {name: read(media, name) for name in ("grid", "pace", "order")}
    one = engine(folder)

    def ask(**more: Any) -> list[int]:
        text = "<|vision_start|><|video_pad|><|vision_end|>"
        return one.ask({"prompt": text, "multi_modal_data": {"video": {"embeddings": rows, **given, **more}}}, 8)

    assert len(ask()) == 8
    for more, why in (
        ({"order": given["order"][:-1]}, "order must name each"),
        ({"order": np.zeros_like(given["order"])}, "order must name each"),
        ({"grid": [1, 2]}, "are no grid of .1, 2. patches"),
    ):
        with pytest.raises(BadRequest, match=why):
            ask(**more)


@pytest.mark.row("F-710", "F-723")
@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_the_sound_of_a_film_is_heard_where_it_is_asked_for(
    quantization: str | None, folder: Path, shower: Any, film: Any, engine: Any
) -> None:
    shows, one = shower(folder, OFFER), engine(folder, max_model_len=512, quantization=quantization)
    low, answer = check_films(one, film)
    seen = decode_video(low, {}, Limits())
    heard = decode_track(low, RATE, Limits())
    assert heard is not None
    assert len(heard.samples) == 25600
    placed = shows.place([*b"watch", *see(VIDEO)], [dataclasses.replace(seen, sound=heard)], **BOTH)
    assert one.answer([placed])[0] == answer


@pytest.mark.slow
def test_a_worker_process_prepares_a_film_with_its_sound(folder: Path, film: Any) -> None:
    names = plugins.load(["models", "multimodal", "cpu"]).names
    architecture = "Qwen2_5OmniThinkerForConditionalGeneration"
    config = fake_config(model=str(folder), architecture=architecture, plugins=names, max_model_len=512)
    data = film([10, 200, 90, 30], fps=2, kind="matroska", heard=sound(1, 1.6).samples)
    process: Any = SideProcess(media_worker(MediaOptions()), Init(config, Limits()))
    process.start()
    try:
        made, silent = (process.ask(Prepare("video", Encoded(data), asked), 60).processed for asked in (BOTH, SMALL))
    finally:
        process.end()
    assert (made.tokens[0], made.tokens[-1], made.tokens.count(AUDIO)) == (SOUNDS, SOUND_ENDS, 40)
    assert set(made.inputs) - set(silent.inputs) == {"features", "order"}
    assert set(silent.tokens) == {VIDEO}


def test_engine_in_chunks_with_prefixes_and_preemption(
    folder: Path, shower: Any, prompts: dict[int, Prompt], talkie: Any, engine: Any
) -> None:
    other = dataclasses.replace(talkie(4, 40, 24, 1.9), sound=sound(8, 1.8))
    shown = [*prompts.values(), shower(folder, OFFER).place([*b"watch", *see(VIDEO), *b"and hear"], [other], **BOTH)]
    plain = engine(folder, enable_prefix_caching=False)
    expected = [plain.answer([prompt], 24)[0] for prompt in shown]
    assert len({tuple(answer) for answer in expected}) == len(expected), "media make no difference"
    assert plain.answer(shown, 24) == expected
    roomy = engine(folder, max_num_batched_tokens=16)
    for _ in range(2):
        assert roomy.answer(shown, 24) == expected
    assert roomy.llm.stats.prefix_hits_total > 0
    short = [number for number, prompt in enumerate(shown) if len(prompt.ids) < 104]
    tight = engine(folder, max_num_batched_tokens=16, num_gpu_blocks_override=5, max_model_len=128)
    assert tight.answer([shown[number] for number in short], 24) == [expected[number] for number in short]
    assert tight.llm.stats.preemptions_total > 0
