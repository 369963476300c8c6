"""A picture, a sound and a clip with something in them that can be asked about."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np


def draw_circle(path: Path, colour: str = "red", size: int = 224) -> Path:
    """A circle on white, as PNG."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (size, size), "white")
    ImageDraw.Draw(picture).ellipse((size // 4, size // 4, 3 * size // 4, 3 * size // 4), fill=colour)
    picture.save(path)
    return path


def play_beeps(path: Path, count: int = 3, pitch: float = 660.0, rate: int = 16_000) -> Path:
    """Beeps of a fifth of a second with as much silence around them, as WAV."""
    at = np.arange(rate // 5) / rate
    beep = np.sin(2 * np.pi * pitch * at) * np.hanning(at.size) ** 0.2 * 0.6
    sound = np.concatenate([np.zeros(at.size), *[np.concatenate([beep, np.zeros(at.size)])] * count])
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((sound * 32767).astype("<i2").tobytes())
    return path


def move_square(path: Path, frames: int = 16, rate: int = 8, size: int = 224) -> Path:
    """A blue square that moves from left to right on white, as H.264 in MP4."""
    import av

    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = size, size, "yuv420p"
        for number in range(frames):
            picture = np.full((size, size, 3), 255, np.uint8)
            side = size // 4
            left = size // 12 + (size - side - size // 6) * number // (frames - 1)
            picture[size // 2 - side // 2 : size // 2 + side // 2, left : left + side] = (30, 60, 220)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
    return path
