"""Audio as Whisper hears it: the log of a mel spectrogram (Radford et al. 2022), made in numpy alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsv.media.processor import Audio, Content, Processed
from lsv.request.media import Media, Modality, Positions
from lsv.resolve.locate import read_object
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.families.image_processor import check_options, pack

RATE = 16000
_WINDOW = 400
"""Samples of a frame."""
HOP = 160
"""Samples from one frame to the next."""
_AT_ONCE = 3000
"""Frames of half a minute, whose spectra are in memory at a time."""
_HIGHEST = 8000.0
_QUIETEST = 1e-10
_RANGE = 8.0
"""Powers of ten below the loudest that are told apart."""
_KNOWN = {"sampling_rate": RATE, "n_fft": _WINDOW, "hop_length": HOP, "dither": 0.0, "padding_value": 0.0}

Floats = npt.NDArray[np.float64]


class WhisperPlacement:
    """Audio has no place in the prompt: every token attends to all of it."""

    placeholders: Mapping[Modality, int] = {}

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        """Nothing of ``config`` matters."""

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class WhisperProcessor:
    """One window of audio, padded with silence, as ``features`` float32 [bins, frames]."""

    rate = RATE

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        read_extractor(folder)
        self._source = int(config.get("max_source_positions", 1500))
        self._filters = mel_filters(int(config.get("num_mel_bins", 80)))

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        sound, longest = check_audio(content).samples, 2 * self._source * HOP
        if len(sound) > longest:
            seconds = len(sound) / RATE
            raise BadRequest(f"the audio lasts {seconds:.1f} s, and the model hears {longest / RATE:g} s at a time")
        samples = np.zeros(longest)
        samples[: len(sound)] = sound
        features = log_mel(samples, self._filters)
        return Processed({"features": pack(features)}, (), 0, self._source, cross=True)


def check_audio(content: Content) -> Audio:
    """Raises ``BadRequest`` for what can't be heard."""
    if not isinstance(content, Audio):
        raise BadRequest("this model takes audio, no images and no video")
    return content


def log_mel(samples: npt.NDArray[np.floating[Any]], filters: Floats) -> npt.NDArray[np.float32]:
    """samples [n] -> float32 [bins, n // 160]: how loud each band of the mel scale is, from frame to frame.

    Logarithms of power to base 10, the loudest 8 powers of it, scaled to about -1 … 1.
    """
    mirrored = np.pad(samples, _WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(mirrored, _WINDOW)[: len(samples) // HOP * HOP : HOP]
    pieces = (frames[first : first + _AT_ONCE] for first in range(0, len(frames), _AT_ONCE))
    loud = np.concatenate([_loudness(piece, filters) for piece in pieces], axis=1)
    shaped = (np.maximum(loud, loud.max() - _RANGE) + 4.0) / 4.0
    features: npt.NDArray[np.float32] = shaped.astype(np.float32)
    return features


def _loudness(frames: npt.NDArray[np.floating[Any]], filters: Floats) -> Floats:
    """frames [n, samples] -> [bins, n], the logarithms of power."""
    power = np.abs(np.fft.rfft(frames * np.hanning(_WINDOW + 1)[:-1])) ** 2
    loud: Floats = np.log10(np.maximum(filters @ power.T, _QUIETEST))
    return loud


def mel_filters(bins: int) -> Floats:
    """Triangles over the frequencies of a spectrum, [bins, frequencies]: evenly spaced on the mel scale of Slaney's
    Auditory Toolbox (1998), each of the same area.
    """
    edges = _hertz(np.linspace(0.0, _mel(_HIGHEST), bins + 2))[:, None]
    frequencies = np.linspace(0.0, RATE / 2, _WINDOW // 2 + 1)
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    return np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low))


def _mel(hertz: float) -> float:
    """15 steps to 1000 Hz, from there 27 steps to every 6.4 times the frequency."""
    return hertz * 15.0 / 1000.0 if hertz < 1000.0 else float(15.0 + 27.0 * np.log(hertz / 1000.0) / np.log(6.4))


def _hertz(mel: Floats) -> Floats:
    above = 1000.0 * np.exp((mel - 15.0) * np.log(6.4) / 27.0)
    return np.where(mel < 15.0, mel * 1000.0 / 15.0, above)


def read_extractor(folder: Path) -> Mapping[str, Any]:
    """What a checkpoint says of its features; empty where it says nothing.

    Raises ``CheckpointError`` where it asks for other features than all published ones do.
    """
    asked: Mapping[str, Any] | None = read_object(folder / "preprocessor_config.json")
    if asked is None:
        asked = (read_object(folder / "processor_config.json") or {}).get("feature_extractor") or {}
    other = [f"{name}={asked[name]}" for name, known in _KNOWN.items() if asked.get(name, known) != known]
    normalised = asked.get("do_normalize") and "image_processor_type" not in asked  # one file may speak of both
    if other or normalised:
        raise CheckpointError(f"{folder} asks for features that are not known: {', '.join(other) or 'do_normalize'}")
    return asked
