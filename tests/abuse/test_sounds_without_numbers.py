"""Audio with NaN or infinity is the client's mistake, and never counts as a fault of the model."""

import hashlib
import struct

import numpy as np
import pytest

from lsv.media.options import Limits
from lsv.media.processor import Audio
from lsv_base.errors import BadRequest
from lsv_multimodal.decoding.audio import decode_audio, decode_track, mix_audio
from lsv_multimodal.preprocessing import Preprocessor

RATE = 16_000
VALUES = {"nan": float("nan"), "infinity": float("inf"), "minus infinity": float("-inf")}


def wav(samples: np.ndarray, bits: int = 32) -> bytes:
    data = samples.astype(f"<f{bits // 8}").tobytes()
    size = bits // 8
    form = struct.pack("<IHHIIHH", 16, 3, 1, RATE, RATE * size, size, bits)
    return (
        b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " + form + b"data" + struct.pack("<I", len(data)) + data
    )


def with_one(value: float) -> np.ndarray:
    samples = np.zeros(RATE, np.float64)
    samples[5] = value
    return samples


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("rate", [RATE, 22_050])
def test_a_file_with_a_nonfinite_sample_is_refused(value: float, bits: int, rate: int) -> None:
    for decode in (decode_audio, decode_track):
        with pytest.raises(BadRequest, match="NaN or infinity; send finite"):
            decode(wav(with_one(value), bits), rate, Limits())
    with pytest.raises(BadRequest, match="NaN or infinity; send finite"):
        mix_audio(with_one(value), RATE, rate, Limits())


def test_finite_audio_passes() -> None:
    assert len(decode_audio(wav(with_one(0.5)), RATE, Limits()).samples) == RATE


def test_no_nonfinite_media_reach_a_processor() -> None:
    """All decoded audio passes through this function."""
    preprocessor = Preprocessor.__new__(Preprocessor)  # without a model
    preprocessor.limits, preprocessor._root = Limits(), hashlib.sha256()
    with pytest.raises(BadRequest, match="the audio has values that are NaN or infinity"):
        preprocessor.process("audio", Audio(with_one(VALUES["nan"]).astype(np.float32), RATE), {})
