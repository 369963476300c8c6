"""Sounds for models that hear."""

from __future__ import annotations

import io
import wave

import numpy as np


def beep(hertz: int, seconds: float = 1.0) -> bytes:
    """A tone, as a WAV file."""
    samples = (8000 * np.sin(2 * np.pi * hertz * np.arange(int(16000 * seconds)) / 16000)).astype(np.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", "not compressed"))
        out.writeframes(samples.tobytes())
    return file.getvalue()
