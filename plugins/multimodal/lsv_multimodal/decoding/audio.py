"""Encoded audio to samples at the rate a processor wants, mixed down to one channel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from lsv.media.options import Limits
from lsv.media.processor import Audio
from lsv_base.errors import BadRequest
from lsv_multimodal.decoding.containers import check_codec, opened

Samples = np.ndarray[Any, np.dtype[np.float32]]


def decode_audio(data: bytes, rate: int, limits: Limits) -> Audio:
    """The first audio stream. Raises ``BadRequest``.

    Channels are averaged with equal weights whatever they are for, so that none can carry what people do not hear.
    """
    found = decode_track(data, rate, limits)
    if found is None:
        raise BadRequest("it contains no audio")
    return found


def decode_track(data: bytes, rate: int, limits: Limits) -> Audio | None:
    """The same; None where there is no audio stream, as in a silent video."""
    with opened(data, "audio") as container:
        if not container.streams.audio:
            return None
        stream = container.streams.audio[0]
        check_codec(stream, "audio")
        _check_seconds(_seconds_of(stream), limits)
        stream.codec_context.thread_count = 1
        resampler = av.AudioResampler(format="fltp", rate=rate)
        frames = (resampled for frame in container.decode(stream) for resampled in resampler.resample(frame))
        return Audio(_gather(_flushed(frames, resampler), rate, limits), rate)


def measure_audio(data: bytes, rate: int, limits: Limits) -> int:
    """Decoded size of the first audio stream in bytes, by its header; 0 if unknown, or without a stream.

    Raises ``BadRequest``.
    """
    with opened(data, "audio") as container:
        if not container.streams.audio:
            return 0
        seconds = _seconds_of(container.streams.audio[0])
    _check_seconds(seconds, limits)
    return int(max(0.0, seconds) * rate) * np.dtype(np.float32).itemsize


def _seconds_of(stream: av.AudioStream) -> float:
    """Duration of a stream by its header; 0 if unknown."""
    if stream.duration is None or stream.time_base is None:
        return 0.0
    return float(stream.duration * stream.time_base)


def mix_audio(samples: npt.ArrayLike, given: int, rate: int, limits: Limits) -> Audio:
    """Audio given as numbers: [samples] or [channels, samples] or [samples, channels], at ``given`` a second.

    Integers are scaled by their type's range. Raises ``BadRequest``.
    """
    array = np.asarray(samples)
    if array.ndim not in (1, 2) or not array.size or given < 1:
        raise BadRequest("audio must be ([samples] or [channels, samples], rate in samples a second), and not empty")
    if np.issubdtype(array.dtype, np.integer):
        array = array.astype(np.float32) / float(np.iinfo(array.dtype).max)
    if array.ndim == 2:
        array = array.mean(axis=int(np.argmin(array.shape)))
    mixed = np.ascontiguousarray(array, np.float32)
    _check_finite(mixed)
    _check_seconds(len(mixed) / given, limits)
    if given == rate:
        return Audio(mixed, rate)
    frame = av.AudioFrame.from_ndarray(mixed[None], format="fltp", layout="mono")
    frame.sample_rate = given
    resampler = av.AudioResampler(format="fltp", rate=rate)
    return Audio(_gather(_flushed(iter(resampler.resample(frame)), resampler), rate, limits), rate)


def _flushed(frames: Iterator[av.AudioFrame], resampler: av.AudioResampler) -> Iterator[av.AudioFrame]:
    """All frames, and then what the resampler still holds."""
    seen = False
    for frame in frames:
        seen = True
        yield frame
    if seen:
        yield from resampler.resample(None)


def _gather(frames: Iterator[av.AudioFrame], rate: int, limits: Limits) -> Samples:
    pieces: list[Samples] = []
    count = 0
    for frame in frames:
        pieces.append(frame.to_ndarray().mean(axis=0, dtype=np.float32))
        _check_finite(pieces[-1])
        count += len(pieces[-1])
        _check_seconds(count / rate, limits)
    if not count:
        raise BadRequest("the audio is empty")
    return np.clip(np.concatenate(pieces), -1.0, 1.0)


def _check_finite(samples: Samples) -> None:
    """Raises ``BadRequest`` for NaN and infinity, which floating-point formats can contain."""
    if not np.isfinite(samples).all():
        raise BadRequest("the audio has samples that are NaN or infinity; send finite samples")


def _check_seconds(seconds: float, limits: Limits) -> None:
    if seconds > limits.seconds:
        raise BadRequest(f"audio may last {limits.seconds:g} s, this lasts {seconds:.0f} s")
