"""A real Whisper transcribes speech as transformers does, letter for letter."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from demo_training.senses.held_out import wav
from lsv.media.processor import Audio
from published.models import Published
from published.speech import RATE, Voice
from suite.server import Server

SAID = {
    "en": "Hello, this is a test of speech recognition. The capital of France is Paris.",
    "de": "Guten Morgen. Heute ist das Wetter sehr schön in Berlin.",
    "fr": "Bonjour, je m'appelle Pierre et j'habite à Paris.",
}


@pytest.fixture(scope="module")
def voice(published: Published) -> Voice:
    return Voice(published.folder("espeak"))


@pytest.fixture(scope="module")
def server(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server") / "log", str(published.whisper()), "--dtype", "float32")
    running.wait_until_ready()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def reference(published: Published) -> tuple[Any, Any]:
    folder = published.whisper()
    model: Any = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return WhisperProcessor.from_pretrained(folder), model.eval()


@torch.inference_mode()
def transcribe(reference: tuple[Any, Any], sound: bytes, **options: Any) -> str:
    processor, model = reference
    with wave.open(io.BytesIO(sound)) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    features = processor(samples, sampling_rate=RATE, return_tensors="pt").input_features
    ids = model.generate(features, **options, task="transcribe", num_beams=1, do_sample=False)
    return str(processor.batch_decode(ids, skip_special_tokens=True)[0]).strip()


@pytest.mark.parametrize("language", SAID)
def test_speech_is_transcribed_as_by_transformers(
    server: Server, voice: Voice, reference: tuple[Any, Any], language: str
) -> None:
    sound = wav(Audio(voice.say(language, SAID[language]), RATE))
    client = server.client()
    model = client.models.list().data[0].id
    for options in ({"language": language}, {}):  # named, and found out
        made = client.audio.transcriptions.create(model=model, file=("speech.wav", sound), temperature=0, **options)
        expected = transcribe(reference, sound, **options)
        assert made.text.strip() == expected
        assert len(expected.split()) > 4
