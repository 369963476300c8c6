"""Ultravox gives the logits of its published code over transformers' Whisper and Llama, wherever its parts are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from lsv.config import Part
from lsv.media.processor import Audio
from lsv.request.prompt import Prompt
from lsv_base.errors import BadRequest, CheckpointError, ConfigError
from lsv_multimodal.families.ultravox import UltravoxPlacement
from lsv_multimodal.families.whisper.audio import HOP, RATE
from lsv_multimodal.placement import spell
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load, stored_bytes
from lsv_testing.shown import check_shown, encode
from lsv_testing.tiny_hearing import tiny_ultravox

from .conftest import read, sound

AUDIO = 259
STACK, CONTEXT = 8, 200
SECONDS = {0: [1.3], 1: [0.33, 2.0], 2: [], 3: [2.5], 4: [0.01, 4.01, 5.995]}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_ultravox(tmp_path_factory.mktemp("ultravox"), whole=True)


def contents(number: int) -> list[Audio]:
    return [sound(10 * number + place, seconds) for place, seconds in enumerate(SECONDS[number])]


@pytest.fixture(scope="session")
def prompts(folder: Path, shower: Any) -> dict[int, Prompt]:
    """Sounds of less than a window, of one, of several, and of so little that it is padded."""
    shows = shower(folder, "ultravox")
    texts = {0: [*b"hear ", AUDIO], 1: [AUDIO, *b"and", AUDIO, 63], 2: [*b"nothing to hear"], 3: [AUDIO, 46],
             4: [*b"all:", AUDIO, AUDIO, *b", ", AUDIO]}  # fmt: skip
    return {number: shows.place(ids, contents(number)) for number, ids in texts.items()}


class Reference:
    """The published code's steps, written plainly, over transformers' own parts."""

    def __init__(self, folder: Path) -> None:
        from transformers import LlamaForCausalLM, WhisperFeatureExtractor, WhisperForConditionalGeneration

        beside = folder.parent
        self.config = json.loads((folder / "config.json").read_text())
        self.language = LlamaForCausalLM.from_pretrained(
            beside / "text", dtype=torch.float32, attn_implementation="eager"
        )
        whisper: Any = WhisperForConditionalGeneration.from_pretrained(
            beside / "audio", dtype=torch.float32, attn_implementation="eager"
        )
        self.tower = whisper.model.encoder
        self.extractor: Any = WhisperFeatureExtractor.from_pretrained(beside / "audio")
        stored = load_file(folder / "model.safetensors")
        self.weights = {
            name.removeprefix("multi_modal_projector.").removesuffix(".weight"): one
            for name, one in stored.items()
            if name.startswith("multi_modal_projector.")
        }

    def features(self, content: Audio) -> torch.Tensor:
        samples = np.pad(content.samples, (0, max(0, 2 * HOP - len(content.samples))))
        made = self.extractor(
            [samples], sampling_rate=RATE, padding="longest", pad_to_multiple_of=HOP, truncation=False,
            return_attention_mask=True, return_tensors="pt",
        )  # fmt: skip
        assert int(made.attention_mask.sum()) == made.input_features.shape[2]
        return made.input_features[0]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def embeddings(self, content: Audio) -> torch.Tensor:
        features, found = self.features(content), []
        for first in range(0, features.shape[1], CONTEXT):
            piece = features[:, first : first + CONTEXT]
            frames = piece.shape[1]
            if first:
                piece = functional.pad(piece, (0, CONTEXT - frames))
            found.append(self.project(self.hear(piece[None], (frames - 1) // 2 + 1))[: -(-frames // (2 * STACK))])
        return torch.cat(found)

    def hear(self, features: torch.Tensor, heard: int) -> torch.Tensor:
        """features [1, bins, frames], of whose positions so many are seen -> [positions, size]."""
        x = functional.gelu(self.tower.conv1(features))
        x = functional.gelu(self.tower.conv2(x)).transpose(1, 2)
        x = x + self.tower.embed_positions.weight[: x.shape[1]]
        mask = torch.zeros(1, 1, x.shape[1], x.shape[1])
        mask[..., heard:] = torch.finfo(torch.float32).min
        for layer in self.tower.layers:
            x = layer(x, mask)
        return self.tower.layer_norm(x)[0]  # type: ignore[no-any-return]

    def project(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.pad(x, (0, 0, 0, -len(x) % STACK)).reshape(-1, STACK * x.shape[1])
        x = self.norm("ln_pre", x) @ self.weights["linear_1"].T
        if self.config["projector_act"] == "swiglu":
            x, gate = x.chunk(2, dim=-1)
            x = functional.silu(gate) * x
        else:
            x = functional.gelu(x)
        if self.config["projector_ln_mid"]:
            return self.norm("ln_mid", x) @ self.weights["linear_2"].T
        return self.norm("ln_post", x @ self.weights["linear_2"].T)

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weights[name]

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        x = self.language.get_input_embeddings()(torch.tensor(ids))
        heard = [self.embeddings(content) for content in contents(number)]
        if heard:
            x[(torch.tensor(ids) == AUDIO).nonzero()[:, 0]] = torch.cat(heard)
        found: torch.Tensor = self.language(inputs_embeds=x[None], use_cache=False).logits[0]
        return found


@pytest.mark.row("F-653")
def test_features_embeddings_logits_and_tokens_equal_the_reference(
    folder: Path, catalog: Any, prompts: dict[int, Prompt]
) -> None:
    reference, config = Reference(folder), engine_config(folder, "ultravox")
    encoder = load(config, catalog).model.encoder
    for number, placed in prompts.items():
        for media, content in zip(placed.media, contents(number), strict=True):
            theirs = reference.features(content).numpy()
            np.testing.assert_allclose(read(media, "features"), theirs, rtol=0, atol=1e-4)
            ours = encode(encoder, media.inputs)
            torch.testing.assert_close(ours, reference.embeddings(content), atol=1e-4, rtol=1e-4)
    check_shown(config, catalog, prompts, reference.logits)


def test_versions_before_0_5_norm_what_comes_out(tmp_path: Path, catalog: Any, prompts: dict[int, Prompt]) -> None:
    folder = tiny_ultravox(tmp_path, whole=True, norm_mid=False)
    check_shown(engine_config(folder, "ultravox"), catalog, prompts, Reference(folder).logits)


def test_a_projector_without_a_gate(tmp_path: Path, catalog: Any, prompts: dict[int, Prompt]) -> None:
    folder = tiny_ultravox(tmp_path, whole=True, projector_act="gelu")
    stored = load_file(folder / "model.safetensors")
    stored["multi_modal_projector.ln_mid.weight"] = torch.linspace(0.5, 1.5, 96)
    stored["multi_modal_projector.linear_2.weight"] = torch.randn(64, 96, generator=torch.manual_seed(3)) * 0.2
    save_file(stored, folder / "model.safetensors")
    check_shown(engine_config(folder, "ultravox"), catalog, prompts, Reference(folder).logits)


def test_the_largest_sounds_are_of_whole_windows(folder: Path, catalog: Any) -> None:
    encoder: Any = load(engine_config(folder, "ultravox"), catalog).model.encoder
    for most, frames in ((1, 16), (13, 200), (27, 416)):
        largest = encoder.largest(most)
        state = encoder.begin(largest)
        for part in range(encoder.parts):
            state = encoder.advance(state, part)
        assert (largest["features"].shape, len(state)) == ((16, frames), most)


@pytest.fixture(scope="session")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights in three checkpoints."""
    return tiny_ultravox(tmp_path_factory.mktemp("apart"))


def test_engine_in_chunks_with_prefixes_and_preemption(
    folder: Path, apart: Path, shower: Any, prompts: dict[int, Prompt], check_engine: Any, engine: Any
) -> None:
    other = shower(folder, "ultravox").place([*b"hear ", AUDIO], [sound(7)])
    shown = [*prompts.values(), other]
    _, answers = check_engine(apart, shown, 5, length=128, step=16)
    assert len({tuple(answer) for answer in answers}) == len(answers), "sounds make no difference"
    assert engine(folder).answer(shown, 40) == answers


def parts_of(folder: Path, **changes: str | None) -> tuple[Part, ...]:
    folders = {"text": str(folder.parent / "text"), "audio": str(folder.parent / "audio"), **changes}
    places = {"text": "language_model", "audio": "audio_tower"}
    return tuple(Part(key=f"{kind}_model_id", place=places[kind], folder=folders[kind]) for kind in places)


def described(whole: Path) -> dict[str, Any]:
    """What is laid over the config.json of a checkpoint whose parts are elsewhere."""
    return {key: value for key, value in json.loads((whole / "config.json").read_text()).items() if "_config" in key}


@pytest.mark.row("F-653")
def test_parts_are_the_same_wherever_they_are(folder: Path, apart: Path, tmp_path: Path, catalog: Any) -> None:
    def state(path: Path, **given: Any) -> dict[str, torch.Tensor]:
        model = load(engine_config(path, "ultravox", **given), catalog).model
        return {name: one.clone() for name, one in model.state_dict().items()}

    expected, overrides = state(folder), described(folder)
    stored = load_file(folder / "model.safetensors")
    heard = {name: one for name, one in stored.items() if not name.startswith("language_model.")}
    (tmp_path / "config.json").write_text((apart / "config.json").read_text())
    save_file(heard, tmp_path / "model.safetensors")
    for path, parts in (
        (apart, parts_of(apart)), (tmp_path, parts_of(apart, audio=None)), (tmp_path, parts_of(apart)),
    ):  # fmt: skip
        found = state(path, parts=parts, overrides=overrides)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    heard["audio_tower.layer_norm.bias"] = torch.full((64,), 9.0)
    save_file(heard, tmp_path / "model.safetensors")
    found = state(tmp_path, parts=parts_of(apart), overrides=overrides)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == ["encoder.tower.norm.bias"]


def test_parts_without_weights_or_without_use_are_refused(folder: Path, apart: Path, catalog: Any) -> None:
    def start(path: Path, parts: tuple[Part, ...], **more: Any) -> None:
        load(engine_config(path, "ultravox", parts=parts, overrides={**described(folder), **more}), catalog)

    start(folder, parts_of(apart, text=None, audio=None))
    start(folder, parts_of(apart))
    with pytest.raises(ConfigError, match=r"no weights of audio_tower .*--hf-overrides '\{\"audio_model_id\": "):
        start(apart, parts_of(apart, audio=None))
    with pytest.raises(ConfigError, match=r"^text_model_id: nothing of .*text would be read, .*: leave it out"):
        start(folder, parts_of(apart), text_model_id=str(apart.parent / "text"))


def test_texts_have_a_mark_for_each_sound(folder: Path, apart: Path, shower: Any, engine: Any) -> None:
    samples, one = sound(3, 1.0).samples, engine(apart)
    placed = shower(folder, "ultravox").place([*b"what: ", AUDIO, *b"?"], [Audio(samples, RATE)])
    data = {"audio": (samples, RATE)}
    assert one.ask({"prompt": "what: <|audio|>?", "multi_modal_data": data}, 8) == one.answer([placed])[0]
    with pytest.raises(BadRequest, match="do not fit the prompt"):
        one.ask({"prompt": "what: <|audio|><|audio|>?", "multi_modal_data": data}, 8)


@pytest.mark.parametrize("silence", [0, 200])
def test_the_shortest_sounds_are_two_frames(silence: int, folder: Path, shower: Any) -> None:
    made = shower(folder, "ultravox").place([AUDIO], [Audio(np.zeros(silence, np.float32), RATE)])
    assert made.ids == (AUDIO,)
    assert read(made.media[0], "features").shape == (16, 2)


def test_what_is_no_sound_is_refused(folder: Path, shower: Any, picture: Any) -> None:
    shows = shower(folder, "ultravox")
    for content, options in ((picture(8, 8), {}), (sound(1), {"fps": 2})):
        with pytest.raises(BadRequest):
            shows.processor.process(content, options)


def name_tokens(folder: Path, tokens: dict[str, int], **config: Any) -> UltravoxPlacement:
    added = [{"content": name, "id": token} for name, token in tokens.items()]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    return UltravoxPlacement(folder, {"text_config": {"vocab_size": 300}, **config})


def test_the_token_that_stands_for_a_sound(tmp_path: Path) -> None:
    known = {"<|reserved_special_token_0|>": 290, "<SPECIAL_9>": 9, "<|end|>": 299}
    for tokens, index, spelled, token in (
        (known, 32000, "<|reserved_special_token_0|>", 290),
        (known, 9, "<SPECIAL_9>", 9),
        ({**known, "<|audio|>": 295}, 295, "<|audio|>", 295),
        # version 0.6 of Llama's: a token that the model has no embedding for
        ({**known, "<|audio|>": 300}, 300, "<|reserved_special_token_0|>", 290),
    ):
        placement = name_tokens(tmp_path, tokens, audio_token_index=index)
        assert (spell("<|audio|>!", placement), placement.placeholders) == (f"{spelled}!", {"audio": token})
    with pytest.raises(CheckpointError, match=r"--hf-overrides .*audio_token_index"):
        name_tokens(tmp_path, {"<SPECIAL_9>": 9}, audio_token_index=32000)


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"audio_latency_block_size": 100}, "audio_latency_block_size is 100, and this architecture has 0"),
        ({"num_projector_layers": 2}, "num_projector_layers is 2, and this architecture has 0"),
        ({"text_model_lora_config": {"r": 8}}, "text_model_lora_config asks for adapters that are not merged"),
        ({"audio_config": {"scale_embedding": True}}, "keys Whisper does not know .*scale_embedding"),
        ({"text_config": {"model_type": "gemma3"}}, "model_type is one of llama, mistral, qwen3, got 'gemma3'"),
        ({"hidden_size": 97}, "hidden_size must be even for swiglu"),
        ({"future_layers": 3}, "keys Ultravox does not know .*future_layers"),
    ],
)
def test_configs_it_can_not_follow_are_refused(overrides: dict[str, Any], why: str, folder: Path, catalog: Any) -> None:
    with pytest.raises(CheckpointError, match=why):
        declare(engine_config(folder, "ultravox", overrides=overrides), catalog)


def test_the_published_sizes_fit(catalog: Any, tmp_path: Path) -> None:
    """Version 0.5 over Llama-3.2-1B, and one whose parts are described by what differs from transformers' defaults."""
    text = {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": True, "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    }  # fmt: skip
    audio = {
        "_name_or_path": "openai/whisper-large-v3-turbo", "activation_dropout": 0.0, "apply_spec_augment": False,
        "begin_suppress_tokens": [220, 50256], "d_model": 1280, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120,
        "decoder_layers": 4, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32,
        "max_length": 448, "model_type": "whisper", "num_hidden_layers": 32, "num_mel_bins": 128, "vocab_size": 51866,
    }  # fmt: skip
    projector = 10240 + 10240 * 2048 + 1024 + 1024 * 2048
    # biases of keys, which stand beside those of queries and values
    zeros = 32 * 1280
    total = 1_235_814_400 + 636_968_960 + zeros + projector
    for config, parameters in (
        ({"text_config": text, "audio_config": audio, "hidden_size": 2048, "projector_ln_mid": True}, total),
        ({"text_config": {"model_type": "llama"}, "audio_config": {"model_type": "whisper"}}, None),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": ["UltravoxModel"], **config}))
        declared = declare(engine_config(tmp_path, "ultravox"), catalog)
        assert parameters is None or stored_bytes(declared) == 4 * parameters
    assert declared.model.norm.weight.shape == (4096,)
