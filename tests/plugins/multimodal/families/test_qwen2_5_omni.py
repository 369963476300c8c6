"""Qwen2.5-Omni's thinker gives transformers' inputs, turns, positions, embeddings, logits and tokens."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from lsv import plugins
from lsv.errors import BadRequest, CheckpointError
from lsv.media.items import Encoded
from lsv.media.options import Limits, MediaOptions
from lsv.media.processor import SOUND, Video
from lsv.processes.side.process import SideProcess
from lsv.request.prompt import Prompt
from lsv.testing.fakes.client import fake_config
from lsv.testing.model import engine_config, load
from lsv.testing.shown import check_shown, encode
from lsv.worker.load.declared import declare
from lsv_multimodal.decoding.audio import decode_track
from lsv_multimodal.decoding.video import decode_video
from lsv_multimodal.families.qwen2_5_omni import Tempo
from lsv_multimodal.families.whisper.audio import RATE
from lsv_multimodal.worker.messages import Init, Prepare
from lsv_multimodal.worker.pool import media_worker

from .conftest import GridReference, patches, read, sound

FAMILY, OFFER = "qwen2_5_omni_thinker", "qwen2_5_omni"
START, END, IMAGE, VIDEO, SOUNDS, SOUND_ENDS, AUDIO = range(259, 266)
SMALL = {"min_pixels": 256, "max_pixels": 1024}
BOTH = {**SMALL, SOUND: True}
PER_SECOND, TURN = 4, 4


def see(placeholder: int) -> list[int]:
    return [START, placeholder, END]


HEAR = [SOUNDS, AUDIO, SOUND_ENDS]


@pytest.fixture(scope="session")
def folder(checkpoint: Callable[..., Path]) -> Path:
    return checkpoint(FAMILY)


@pytest.fixture(scope="session")
def talkie(clip: Any) -> Callable[..., Video]:
    """A clip with its sound."""

    def make(frames: int, width: int, height: int, seconds: float, fps: float = 2.0) -> Video:
        return dataclasses.replace(clip(frames, width, height, fps), sound=sound(frames, seconds))

    return make


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


class OmniReference(GridReference):
    def given(self, placed: Prompt) -> dict[str, Any]:
        """The media of a prompt as transformers takes them."""
        sounds = [read(media, "features") for media in placed.media if "features" in media.inputs]
        lengths = torch.tensor([sound.shape[1] for sound in sounds])
        longest = int(lengths.max()) if sounds else 0
        padded = [np.pad(sound, ((0, 0), (0, longest - sound.shape[1]))) for sound in sounds]
        heard = {
            "input_features": torch.tensor(np.array(padded)),
            "feature_attention_mask": (torch.arange(longest) < lengths[:, None]).long(),
        } if sounds else {}  # fmt: skip
        seen: dict[str, Any] = {}
        for kind, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            shown = [media for media in placed.media if media.modality == kind]
            if shown:
                seen[name] = torch.tensor(np.concatenate([patches(media) for media in shown]))
                seen[f"{kind}_grid_thw"] = torch.tensor(np.array([read(media, "grid") for media in shown]))
            if shown and kind == "video":
                seen["video_second_per_grid"] = torch.tensor([float(read(media, "pace")[0]) for media in shown])
        both = any("order" in media.inputs for media in placed.media)
        return {**heard, **seen, "use_audio_in_video": both}

    def positions(self, placed: Prompt) -> tuple[torch.Tensor, int]:
        given, ids = self.given(placed), torch.tensor([placed.ids])
        mask = given.get("feature_attention_mask")
        found, offset = self.model.model.get_rope_index(
            ids, given.get("image_grid_thw"), given.get("video_grid_thw"), torch.ones_like(ids),
            given["use_audio_in_video"], None if mask is None else mask.sum(1), given.get("video_second_per_grid"),
        )  # fmt: skip
        return found[:, 0], int(offset)

    @torch.inference_mode()
    def embeddings(self, media: Any) -> torch.Tensor:
        parts = []
        if "pixel_values" in media.inputs:
            grid = torch.from_numpy(read(media, "grid"))[None]
            parts.append(self.model.model.get_image_features(torch.from_numpy(patches(media)), grid).pooler_output[0])
        if "features" in media.inputs:
            features = torch.from_numpy(read(media, "features"))[None]
            mask = torch.ones(1, features.shape[2], dtype=torch.long)
            parts.append(self.model.model.get_audio_features(features, mask).last_hidden_state)
        rows = torch.cat(parts)
        return rows[torch.from_numpy(read(media, "order"))] if "order" in media.inputs else rows

    @torch.inference_mode()
    def whole(self, placed: Prompt) -> torch.Tensor:
        """The logits that transformers' own forward gives for a prompt and its media."""
        ids = torch.tensor([placed.ids])
        found = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **self.given(placed))
        return found.logits[0]  # type: ignore[no-any-return]


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

    shows = shower(folder, OFFER)
    theirs: Any = SimpleNamespace(
        audio_bos_token="<", audio_eos_token=">", video_token="v", audio_token="a",
        video_processor=SimpleNamespace(merge_size=2), get_chunked_index=lambda *given: cuts(None, *given),
    )  # fmt: skip
    cuts = Qwen2_5OmniProcessor.get_chunked_index
    marks = {SOUNDS: "<", SOUND_ENDS: ">", VIDEO: "v", AUDIO: "a"}
    for frames, seconds, fps in ((4, 1.9, 2.0), (8, 0.2, 1.0), (3, 2.0, 4.0), (6, 1.1, 3.0), (2, 0.03, 0.5)):
        options = {"min_pixels": 1536, "max_pixels": 2048, SOUND: True}
        placed = shows.place(see(VIDEO), [talkie(frames, 40, 56, seconds, fps)], **options)
        (media,) = placed.media
        seen = {"video_grid_thw": [read(media, "grid")], "video_second_per_grid": [2 / fps]}
        heard = {"num_audio_tokens": [(read(media, "features").shape[1] + 1) // 4]}
        text = Qwen2_5OmniProcessor.replace_video_with_audio_token(
            theirs, seen, 0, heard, 0, position_id_per_seconds=PER_SECOND, seconds_per_chunk=1
        )
        assert "".join(marks[id] for id in placed.ids[1:-1]) == text
        assert placed.ids[media.start - 1], placed.ids[media.stop] == (SOUNDS, SOUND_ENDS)


def test_in_a_gap_over_several_turns_each_ends_one_further_on() -> None:
    turns = Tempo(25, 50).turns(np.array([0, 0, 120, 120, 130]), 60)
    assert [turn.tolist() for turn in turns] == [[0, 1], [*range(5, 55)], [2], [*range(55, 65)], [3, 4]]


def test_without_the_option_or_without_sound_a_clip_is_what_is_seen(
    folder: Path, shower: Any, talkie: Any, clip: Any
) -> None:
    shows, silent = shower(folder, OFFER), clip(4, 40, 24)
    plain = shows.place(see(VIDEO), [silent], **SMALL)
    for content, options in ((talkie(4, 40, 24, 1.0), SMALL), (silent, BOTH), (talkie(4, 40, 24, 0.01), BOTH)):
        made = shows.place(see(VIDEO), [content], **options)
        assert (made.ids, made.positions) == (plain.ids, plain.positions)
        assert made.media[0].inputs == plain.media[0].inputs


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
    expected = load(engine_config(folder, OFFER), catalog).model.state_dict()
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
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(stored, tmp_path / "model.safetensors")
    found = load(engine_config(tmp_path, OFFER), catalog).model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


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
    assert declare(engine_config(tmp_path, OFFER), catalog).weight_bytes == 4 * (8_931_813_888 - unused + zeros)


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
def test_the_sound_of_a_film_is_heard_where_it_is_asked_for(folder: Path, shower: Any, film: Any, engine: Any) -> None:
    shows, one = shower(folder, OFFER), engine(folder, max_model_len=512)
    sounds = (sound(1, 1.6).samples, sound(7, 1.6).samples, None)
    low, high, silent = (film([10, 200, 90, 30], fps=2, kind="matroska", heard=heard) for heard in sounds)

    def ask(data: bytes, options: dict[str, Any]) -> list[int]:
        text = "watch<|vision_start|><|video_pad|><|vision_end|>"
        return one.ask({"prompt": text, "multi_modal_data": {"video": data}, "mm_processor_kwargs": options}, 8)

    seen = decode_video(low, {}, Limits())
    heard = decode_track(low, RATE, Limits())
    assert heard is not None
    assert len(heard.samples) == 25600
    placed = shows.place([*b"watch", *see(VIDEO)], [dataclasses.replace(seen, sound=heard)], **BOTH)
    assert ask(low, BOTH) == one.answer([placed])[0]
    assert ask(low, BOTH) != ask(high, BOTH)
    assert ask(low, SMALL) == ask(high, SMALL) == ask(silent, SMALL) == ask(silent, BOTH) != ask(low, BOTH)


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
