"""Whisper gives transformers' features, embeddings, logits and tokens, however its requests are scheduled."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lsv import LLM, SamplingParams
from lsv.media.processor import Audio
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_base.errors import BadRequest, CheckpointError, ConfigError
from lsv_models.whisper import Tower
from lsv_multimodal.families.whisper.audio import RATE, WhisperProcessor
from lsv_runtime.worker.load.declared import declare
from lsv_testing.model import engine_config, load
from lsv_testing.shown import check_shown, encode
from lsv_testing.tiny_hearing import tiny_hearing
from suite.engines import Engines

from .conftest import sound

START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, BEFORE, NO_MARKS = 257, 258, 259, 260, 261, 263, 265
LENGTH, TOKENS = 64, 16


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hearing(tmp_path_factory.mktemp("whisper"), seconds=2)


PROMPTS: Sequence[tuple[Sequence[int], Audio]] = (
    ([START, ENGLISH, TRANSCRIBE, NO_MARKS], sound(1)),
    ([START, GERMAN, TRANSLATE], sound(2, 0.4)),
    ([BEFORE, *range(60, 95), START, ENGLISH, TRANSCRIBE], sound(3, 2.0)),
    ([START, ENGLISH, TRANSCRIBE, NO_MARKS], sound(2, 0.4)),
    ([START, GERMAN, TRANSCRIBE], sound(1)),
)


@pytest.fixture(scope="session")
def shown(folder: Path, shower: Any) -> dict[int, Prompt]:
    shows = shower(folder, "whisper")
    return {number: shows.place(ids, [content]) for number, (ids, content) in enumerate(PROMPTS)}


class Reference:
    """transformers' own model and features over a checkpoint."""

    def __init__(self, folder: Path) -> None:
        from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        self.extractor = WhisperFeatureExtractor.from_pretrained(folder)

    def features(self, content: Audio) -> torch.Tensor:
        found = self.extractor(content.samples, sampling_rate=RATE, return_tensors="pt").input_features
        return found[0]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def embeddings(self, content: Audio) -> torch.Tensor:
        return self.model.model.encoder(self.features(content)[None]).last_hidden_state[0]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        seen = (self.embeddings(PROMPTS[number][1])[None],)
        found = self.model(encoder_outputs=seen, decoder_input_ids=torch.tensor([ids]), use_cache=False)
        return found.logits[0]  # type: ignore[no-any-return]

    def greedy(self, number: int) -> list[int]:
        ids = list(PROMPTS[number][0])
        for _ in range(TOKENS):
            ids.append(int(self.logits(number, ids)[-1].argmax()))
        return ids[-TOKENS:]


@pytest.fixture(scope="session")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="session")
def answers(reference: Reference) -> list[list[int]]:
    found = [reference.greedy(number) for number in range(len(PROMPTS))]
    assert len({tuple(one) for one in found}) == len(found), "sounds and prompts make no difference"
    return found


def read(placed: Prompt) -> torch.Tensor:
    array = placed.media[0].inputs["features"]
    return torch.frombuffer(bytearray(array.data), dtype=torch.float32).view(array.shape)


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("seconds", [0.01, 3.7, 30.0])
def test_features_equal_transformers(bins: int, seconds: float, tmp_path: Path) -> None:
    from transformers import WhisperFeatureExtractor

    content = sound(4, seconds)
    made = WhisperProcessor(tmp_path, {"num_mel_bins": bins}).process(content, {})
    array = made.inputs["features"]
    theirs = WhisperFeatureExtractor(feature_size=bins)(content.samples, sampling_rate=RATE, return_tensors="np")
    assert (made.tokens, made.count, made.cross, array.shape) == ((), 1500, True, (bins, 3000))
    ours = np.frombuffer(array.data, np.float32).reshape(array.shape)
    np.testing.assert_allclose(ours, theirs.input_features[0], rtol=0, atol=1e-4)


def test_silence_is_silence(tmp_path: Path) -> None:
    made = WhisperProcessor(tmp_path, {}).process(Audio(np.zeros(RATE, np.float32), RATE), {})
    assert set(np.frombuffer(made.inputs["features"].data, np.float32)) == {np.float32(-1.5)}


def test_embeddings_logits_and_tokens_equal_transformers(
    folder: Path, catalog: Any, shown: dict[int, Prompt], reference: Reference
) -> None:
    config = engine_config(folder, "whisper", max_len=LENGTH)
    declared = load(config, catalog)
    for number, placed in shown.items():
        ours = encode(declared.model.encoder, placed.media[0].inputs)
        torch.testing.assert_close(ours, reference.embeddings(PROMPTS[number][1]), atol=1e-4, rtol=1e-4)
    check_shown(config, catalog, shown, reference.logits)


WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "alone": {"max_num_seqs": 1},
    "in chunks": {"max_num_batched_tokens": 7},
    "prompts whole": {"enable_chunked_prefill": False},
    "nothing kept": {"enable_prefix_caching": False},
    "crowded": {"num_gpu_blocks_override": 17, "block_size": 16},
    "crowded, nothing kept": {"num_gpu_blocks_override": 17, "block_size": 16, "enable_prefix_caching": False},
    "reference": {"reference_ops": True, "cpu.native": "off"},
}


@pytest.mark.row("F-970", "F-668")
@pytest.mark.parametrize("way", WAYS)
def test_answers_equal_transformers_whichever_way(
    way: str, folder: Path, shown: dict[int, Prompt], answers: list[list[int]], engine: Callable[..., Any]
) -> None:
    made = engine(folder, max_model_len=LENGTH, **WAYS[way])
    prompts = [shown[number] for number in range(len(PROMPTS))]
    assert made.answer(prompts, TOKENS) == answers
    assert made.answer(prompts[::-1], TOKENS) == answers[::-1], "again, with what is cached by now"
    assert ("crowded" in way) == (made.llm.stats.preemptions_total > 0)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [None, False])
@pytest.mark.parametrize("platform", ["cuda", "xpu", "hpu"])
def test_answers_equal_transformers_on_any_platform(
    platform: str, depth: bool | None, folder: Path, shown: dict[int, Prompt], answers: Any, engine: Any
) -> None:
    options = {"platform": platform, "emulate": True, "async_scheduling": depth, "max_num_seqs": 4, "block_size": 128}
    made = engine(folder, max_model_len=LENGTH, **options | ({} if platform == "hpu" else {"block_size": 64}))
    assert made.answer(list(shown.values()), TOKENS) == answers
    assert made.llm.stats.unwarmed_total == 0


@pytest.mark.slow
def test_answers_equal_transformers_on_two_ranks(folder: Path, shown: Any, answers: Any, engine: Any) -> None:
    made = engine(folder, max_model_len=LENGTH, tensor_parallel_size=2)
    assert made.answer(list(shown.values()), TOKENS) == answers


def test_the_same_sound_is_encoded_once(folder: Path, shown: Any, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    begin = Tower.begin
    monkeypatch.setattr(Tower, "begin", lambda tower, inputs: begun.append(1) or begin(tower, inputs))
    made = engine(folder, max_model_len=LENGTH)
    made.answer(list(shown.values()), TOKENS)
    made.answer(list(shown.values()), TOKENS)
    assert len(begun) == 3, "three different sounds in five prompts, asked twice"


def test_a_sound_that_breaks_the_encoder_fails_its_own_requests(
    folder: Path, shown: Any, answers: Any, engine: Any, shower: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Tower.begin

    def picky(tower: Tower, inputs: Any) -> torch.Tensor:
        assert inputs["features"].amax() > -1.5, "silence"
        return begin(tower, inputs)

    monkeypatch.setattr(Tower, "begin", picky)
    made = engine(folder, max_model_len=LENGTH)
    silent = shower(folder, "whisper").place([START], [Audio(np.zeros(RATE, np.float32), RATE)])
    client, errors = made.llm.llm_engine.client, []
    for number in range(2):
        client.add(RequestSpec(prompts=(silent,), sampling=SamplingParams(), request_id=f"silent {number}"))
    params = SamplingParams(temperature=0.0, max_tokens=4)
    client.add(RequestSpec(prompts=(shown[0],), sampling=params, request_id="other"))
    while client.unfinished:
        errors += [(news.request_id, str(news.error)) for news in client.step() if news.error is not None]
    assert [name for name, _ in errors] == ["silent 0", "silent 1"]
    assert all("the audio could not be encoded: AssertionError: silence" in error for _, error in errors)
    assert made.answer(list(shown.values()), TOKENS) == answers


def test_users_give_text_and_samples_or_embeddings(
    folder: Path, answers: Any, reference: Reference, engine: Any
) -> None:
    made = engine(folder, max_model_len=LENGTH)
    text = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
    heard = PROMPTS[0][1]
    for audio in ((heard.samples, RATE), reference.embeddings(heard)):
        assert made.ask({"prompt": text, "multi_modal_data": {"audio": audio}}, TOKENS) == answers[0]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({}, "expects exactly one media item next to its prompt, got 0"),
        (
            {"audio": [(sound(1).samples, RATE), (sound(2).samples, RATE)]},
            "exactly one media item next to its prompt",
        ),
        ({"audio": (sound(1, 2.1).samples, RATE)}, "the audio lasts 2.1 s, and the model hears 2 s at a time"),
        ({"image": np.zeros((4, 4, 3), np.uint8)}, "image"),
        ({"audio": np.zeros((101, 64), np.float32)}, "the item has 101 embeddings, and the model attends to at most"),
    ],
)
def test_what_it_can_not_take_is_refused(data: dict[str, Any], why: str, folder: Path, engine_for: Engines) -> None:
    llm = engine_for(folder, dtype="float32", max_model_len=LENGTH)
    with pytest.raises(BadRequest, match=why):
        llm.generate(
            {"prompt_token_ids": [START], "multi_modal_data": data}, SamplingParams(max_tokens=1), use_tqdm=False
        )


def test_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no option chunk_length: it takes none"):
        WhisperProcessor(tmp_path, {}).process(sound(1), {"chunk_length": 5})


@pytest.mark.parametrize("asked", [{"hop_length": 80}, {"n_fft": 512}, {"dither": 0.1}, {"do_normalize": True}])
def test_other_features_are_refused(asked: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"hop_length": 160, **asked}))
    with pytest.raises(CheckpointError, match=next(iter(asked))):
        WhisperProcessor(tmp_path, {})


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"overrides": {"decoder_attention_heads": 3}}, CheckpointError, "d_model=64 is not a multiple of 3 heads"),
        ({"overrides": {"scale_embedding": True}}, CheckpointError, "keys Whisper does not know .*: scale_embedding"),
        ({"max_len": LENGTH + 1}, ConfigError, "max_model_len=65 is more than the 64 positions"),
    ],
)
def test_other_checkpoints_are_refused(changes: Any, error: Any, why: str, folder: Path, catalog: Any) -> None:
    with pytest.raises(error, match=why):
        declare(engine_config(folder, "whisper", **{"max_len": LENGTH, **changes}), catalog)


def test_english_alone(tmp_path: Path, catalog: Any, shower: Any) -> None:
    folder = tiny_hearing(tmp_path, seconds=1, languages=(), decoder_layers=1, seed=3)
    theirs = Reference(folder)
    placed = shower(folder, "whisper").place(PROMPTS[1][0], [PROMPTS[1][1]])
    check_shown(engine_config(folder, "whisper", max_len=LENGTH), catalog, {1: placed}, theirs.logits)


def test_the_length_is_the_decoders(folder: Path) -> None:
    with LLM(str(folder), dtype="float32") as llm:
        assert llm.llm_engine.client.config.max_model_len == LENGTH
