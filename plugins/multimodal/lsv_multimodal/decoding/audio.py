"""Encoded sounds to samples at the rate a processor wants, all channels as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from lsv.errors import BadRequest
from lsv.media.options import Limits
from lsv.media.processor import Sound
from lsv_multimodal.decoding.containers import opened

Samples = np.ndarray[Any, np.dtype[np.float32]]


def decode_sound(data: bytes, rate: int, limits: Limits) -> Sound:
    """The first audio stream. The channels are averaged, each with the same weight: what is in one of them counts
    however it is called, so that none carries what nobody hears. Raises ``BadRequest``.
    """
    with opened(data, "sound") as container:
        if not container.streams.audio:
            raise BadRequest("there is no sound in it")
        stream = container.streams.audio[0]
        if stream.duration is not None and stream.time_base is not None:
            _check_seconds(float(stream.duration * stream.time_base), limits)
        resampler = av.AudioResampler(format="fltp", rate=rate)
        frames = (resampled for frame in container.decode(stream) for resampled in resampler.resample(frame))
        return Sound(_gather(_flushed(frames, resampler), rate, limits), rate)


def mix_sound(samples: npt.ArrayLike, given: int, rate: int, limits: Limits) -> Sound:
    """A sound given as numbers: [samples] or [channels, samples] or [samples, channels], at ``given`` a second.

    Integers are scaled by their type's range. Raises ``BadRequest``.
    """
    array = np.asarray(samples)
    if array.ndim not in (1, 2) or not array.size or given < 1:
        raise BadRequest("a sound must be ([samples] or [channels, samples], rate in samples a second), and not empty")
    if np.issubdtype(array.dtype, np.integer):
        array = array.astype(np.float32) / float(np.iinfo(array.dtype).max)
    if array.ndim == 2:
        array = array.mean(axis=int(np.argmin(array.shape)))
    mixed = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(mixed).all():
        raise BadRequest("a sound must hold finite numbers")
    _check_seconds(len(mixed) / given, limits)
    if given == rate:
        return Sound(mixed, rate)
    frame = av.AudioFrame.from_ndarray(mixed[None], format="fltp", layout="mono")
    frame.sample_rate = given
    resampler = av.AudioResampler(format="fltp", rate=rate)
    return Sound(_gather(_flushed(iter(resampler.resample(frame)), resampler), rate, limits), rate)


def _flushed(frames: Iterator[av.AudioFrame], resampler: av.AudioResampler) -> Iterator[av.AudioFrame]:
    """All frames, and then what the resampler has kept back."""
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
        count += len(pieces[-1])
        _check_seconds(count / rate, limits)
    if not count:
        raise BadRequest("the sound is empty")
    return np.clip(np.concatenate(pieces), -1.0, 1.0)


def _check_seconds(seconds: float, limits: Limits) -> None:
    if seconds > limits.seconds:
        raise BadRequest(f"a sound may last {limits.seconds:g} s, this one lasts {seconds:.0f} s")
