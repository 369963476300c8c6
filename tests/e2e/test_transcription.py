"""``lsv serve`` on a tiny model that hears: from a file to words with their times, through every process."""

from __future__ import annotations

import io
import shutil
import subprocess
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch

from lsv_multimodal.families.whisper.text import WhisperTranscriber
from lsv_testing.tiny_hearing import tiny_hearing

from .conftest import Server

pytestmark = pytest.mark.slow

RATE, LONG = 16_000, 75


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hearing(tmp_path_factory.mktemp("hearing"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    running = Server(log, str(checkpoint), "--served-model-name", "m", "--dtype", "float32")
    try:
        running.wait_until_ready()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return server.client()


def samples(seconds: float, seed: int = 0) -> np.ndarray:
    """Tones of a second each with pauses between them, float32 in -1 … 1."""
    time = np.arange(round(seconds * RATE)) / RATE
    pitches = np.random.default_rng(seed).uniform(100, 2000, int(seconds) + 1)
    return (0.5 * np.sin(2 * np.pi * pitches[time.astype(int)] * time) * (time % 1 < 0.8)).astype(np.float32)


def wav(sound: np.ndarray) -> tuple[str, bytes]:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, RATE, 0, "NONE", ""))
        out.writeframes((sound * 32767).astype("<i2").tobytes())
    return "sound.wav", file.getvalue()


def hear(client: openai.OpenAI, file: Any, **options: Any) -> Any:
    return client.audio.transcriptions.create(file=file, model="m", **options)


class Reference:
    """What transformers makes of the checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.model = WhisperForConditionalGeneration.from_pretrained(checkpoint).eval()
        self.transcriber = WhisperTranscriber(checkpoint, self.model.config.to_dict())
        self._extractor = WhisperFeatureExtractor.from_pretrained(checkpoint)

    def features(self, file: tuple[str, bytes]) -> torch.Tensor:
        heard = np.frombuffer(file[1][44:], "<i2").astype(np.float32) / 32768
        return self._extractor(heard, sampling_rate=RATE, return_tensors="pt").input_features

    @torch.inference_mode()
    def timed(self, file: tuple[str, bytes], most: int) -> list[int]:
        return self.model.generate(
            self.features(file), language="de", task="transcribe", return_timestamps=True, max_new_tokens=most,
            do_sample=False,
        )[0].tolist()  # fmt: skip

    @torch.inference_mode()
    def beginning(self, file: tuple[str, bytes]) -> torch.Tensor:
        """Probabilities of the token behind the first."""
        begin = torch.tensor([[self.model.config.decoder_start_token_id]])
        return self.model(self.features(file), decoder_input_ids=begin).logits[0, 0].softmax(-1)


@pytest.fixture(scope="module")
def theirs(checkpoint: Path) -> Reference:
    return Reference(checkpoint)


def test_words_and_times_are_those_of_transformers(client: openai.OpenAI, theirs: Reference) -> None:
    for seed in range(4):
        file = wav(samples(20, seed))
        options = {"language": "de", "response_format": "verbose_json", "extra_body": {"max_completion_tokens": 40}}
        answer = hear(client, file, **options)
        spans = theirs.transcriber.spans(theirs.timed(file, 40), 20.0)
        assert [(one.start, one.end, one.tokens) for one in answer.segments] == [
            (span.start, span.stop, list(span.ids)) for span in spans
        ]
        assert spans


def test_languages_and_silence_are_told_as_the_model_does(client: openai.OpenAI, theirs: Reference) -> None:
    _, codes = theirs.transcriber.ask_language()
    _, silent = theirs.transcriber.ask_silence() or ((), 0)
    found = set()
    for seed in range(6):
        file = wav(samples(2 + seed, seed))
        chances = theirs.beginning(file)
        code = codes[max(codes, key=lambda token: chances[token].item())]
        answer = hear(client, file, response_format="verbose_json")
        assert answer.language == theirs.transcriber.languages[code]
        assert [one.no_speech_prob for one in answer.segments] == pytest.approx(
            [chances[silent].item()] * len(answer.segments), rel=1e-3
        )
        found.add(len(answer.segments) > 0)
    assert True in found


def test_every_format(client: openai.OpenAI) -> None:
    file = wav(samples(5))
    plain = hear(client, file)
    assert plain.usage.to_dict() == {"type": "duration", "seconds": 5}
    assert hear(client, file, response_format="text") == f"{plain.text}\n"
    verbose = hear(client, file, response_format="verbose_json", timestamp_granularities=["segment"])
    assert verbose.duration == 5.0
    assert verbose.language in ("english", "german")
    assert all(0 <= one.start < one.end <= 5.0 for one in verbose.segments)
    assert all(0 <= one.no_speech_prob <= 1 for one in verbose.segments)
    subtitles = [hear(client, file, response_format=form) for form in ("srt", "vtt")]
    assert [text.count(" --> ") for text in subtitles] == [len(verbose.segments)] * 2
    english: Any = client.audio.translations.create(file=file, model="m", response_format="verbose_json")
    assert english.language == "english"


def test_long_sounds_are_heard_piece_by_piece(client: openai.OpenAI) -> None:
    sound = samples(LONG)
    options: dict[str, Any] = {"language": "en", "extra_body": {"max_completion_tokens": 12}}
    whole = hear(client, wav(sound), **options)
    events = list(hear(client, wav(sound), stream=True, **options))
    assert [event.type for event in events[-2:]] == ["transcript.text.delta", "transcript.text.done"]
    assert "".join(event.delta for event in events[:-1]).strip() == events[-1].text.strip() == whole.text
    assert events[-1].usage.output_tokens <= 12 * 3
    assert events[-1].usage.input_token_details.audio_tokens == 1500 * 3
    timed = hear(client, wav(sound), response_format="verbose_json", **options)
    assert timed.duration == LONG
    assert [one.id for one in timed.segments] == list(range(len(timed.segments)))
    assert [one.start for one in timed.segments] == sorted(one.start for one in timed.segments)
    assert len({one.seek for one in timed.segments}) > 1
    # the tones pause at the end of every second
    assert all(one.seek % 100 >= 80 for one in timed.segments if one.seek)


def test_answers_do_not_depend_on_who_else_is_heard(client: openai.OpenAI) -> None:
    from concurrent.futures import ThreadPoolExecutor

    files = [wav(samples(3 + seed, seed)) for seed in range(6)]
    alone = [hear(client, file, language="en").text for file in files]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lambda file: hear(client, file, language="en").text, files)) == alone
    assert len(set(alone)) > 1


def test_draws_follow_their_seed(client: openai.OpenAI) -> None:
    file = wav(samples(4))
    one, same, other = (
        hear(client, file, language="en", temperature=1.0, extra_body={"seed": n}).text for n in (1, 1, 2)
    )
    assert one == same != other


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_sends_forms(server: Server, tmp_path: Path) -> None:
    (tmp_path / "sound.wav").write_bytes(wav(samples(2))[1])
    answer = subprocess.run(
        ["curl", "-s", f"{server.url}/v1/audio/transcriptions", "-F", f"file=@{tmp_path}/sound.wav", "-F",
         "response_format=vtt"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert answer.stdout.startswith("WEBVTT\n")


def test_what_is_refused(client: openai.OpenAI) -> None:
    sound = wav(samples(1))
    for file, options, message in (
        (("sound.wav", b"RIFF not at all"), {}, "file: the audio is damaged"),
        (("sound.wav", sound[1][:44]), {}, "file: the audio is empty"),
        (sound, {"language": "xx"}, "does not know 'xx'; it knows de, en"),
        (sound, {"response_format": "verbose_json", "timestamp_granularities": ["word"]}, "word is not available"),
        (sound, {"prompt": "x" * 50, "extra_body": {"max_completion_tokens": 60}}, "maximum context length"),
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            hear(client, file, **options)
