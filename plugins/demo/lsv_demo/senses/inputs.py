"""What the tower takes: a small image, a few of them for a clip, the spectrum of a sound."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lsv.media.processor import Audio, Content, Image, Video
from lsv.request.media import Modality
from lsv_base.errors import BadRequest

SIDE = 96
"""Pixels of the longer side of an image after scaling; the rest of the square is grey."""
FRAMES = 4
"""Frames taken from a clip, spread evenly."""
GREY = 128

RATE = 16_000
HOP = 320
WINDOW = 512
BANDS = 32
QUIET = 6.0
"""Powers of ten below the loudest at which a band counts as silent."""

ACROSS = 6
"""Patches in a row of an image."""
HOPS = 8
"""Columns of a spectrum in a patch of a sound."""
PATCHES: Mapping[Modality, int] = {"image": ACROSS * ACROSS, "video": ACROSS * ACROSS, "audio": 128}
"""The most patches an item can have."""
MERGED: Mapping[Modality, int] = {"image": 4, "video": 4, "audio": 2}
"""Patches that become one embedding: two by two in an image, two in a row in a sound."""

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def cut(content: Content) -> tuple[Modality, Bytes | Floats, int]:
    """The modality of something, the tower's input made of it, and how many embeddings it becomes.

    An image is uint8 [SIDE, SIDE, 3], a clip uint8 [FRAMES, SIDE, SIDE, 3], a sound float32 [columns, BANDS].
    Raises ``BadRequest`` for a sound that is too long.
    """
    if isinstance(content, Image):
        return "image", fit(content.pixels), PATCHES["image"] // MERGED["image"]
    if isinstance(content, Video):
        chosen = np.linspace(0, len(content.frames) - 1, FRAMES).round().astype(int)
        frames = np.stack([fit(content.frames[index]) for index in chosen])
        return "video", frames, PATCHES["video"] // MERGED["video"]
    columns = spectrum(content)
    return "audio", columns, len(columns) // (HOPS * MERGED["audio"])


def fit(pixels: Bytes) -> Bytes:
    """Any image scaled to fit a square of ``SIDE`` pixels, its proportions kept, centred on grey."""
    height, width = pixels.shape[:2]
    if height == width == SIDE:
        return pixels
    from PIL import Image as PilImage

    scale = SIDE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = np.asarray(PilImage.fromarray(pixels).resize(size, PilImage.Resampling.BILINEAR, reducing_gap=3.0))
    square = np.full((SIDE, SIDE, 3), GREY, np.uint8)
    top, left = (SIDE - size[1]) // 2, (SIDE - size[0]) // 2
    square[top : top + size[1], left : left + size[0]] = small
    return square


def spectrum(sound: Audio) -> Floats:
    """float32 [columns, BANDS]: the loudness of bands every 20 ms, from -1 (silent) to 1 (the loudest).

    Silence is appended until the sound fills pairs of patches. Raises ``BadRequest`` where there are too many.
    """
    patch = HOP * HOPS
    most = PATCHES["audio"] * patch
    if len(sound.samples) > most:
        raise BadRequest(
            f"the sound is {len(sound.samples) / RATE:.1f} s long, and this model hears at most {most / RATE:.1f} s"
        )
    patches = -(-max(1, len(sound.samples)) // (2 * patch)) * 2
    padded = np.zeros(patches * patch + WINDOW, np.float32)
    padded[: len(sound.samples)] = sound.samples
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[: patches * patch : HOP]
    power = np.abs(np.fft.rfft(windows * np.hanning(WINDOW).astype(np.float32), axis=-1)) ** 2
    loud = np.log10(np.maximum(power.astype(np.float32) @ _bands(), 1e-7))
    quietest = max(float(loud.max()) - QUIET, -QUIET)
    return (np.maximum(loud - quietest, 0) / (QUIET / 2) - 1).clip(-1, 1)


def _bands() -> Floats:
    """float32 [bins, BANDS]: triangular filters, evenly spaced on the mel scale from 100 to 7500 Hz."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (100, 7500))
    edges = 700 * (10 ** (np.linspace(low, high, BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(WINDOW, 1 / RATE)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    triangles: Floats = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    return triangles
