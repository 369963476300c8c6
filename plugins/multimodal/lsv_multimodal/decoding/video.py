"""Encoded video to a few frames, which are chosen by their times before any is decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import av
import av.container
import numpy as np

from lsv.media.options import Limits
from lsv.media.processor import Video
from lsv_base.errors import BadRequest
from lsv_multimodal.decoding.containers import check_codec, opened
from lsv_multimodal.decoding.frames import choose_frames
from lsv_multimodal.decoding.images import check_size


def decode_video(data: bytes, options: Mapping[str, Any], limits: Limits) -> Video:
    """The frames that ``options`` choose of the first video stream, upright. Raises ``BadRequest``.

    ``num_frames`` are spread evenly from the first to the last frame; ``fps`` takes the frame shown at each of so many
    moments a second. No frame is taken twice, so a short video may give fewer. Audio is left to ``decode_track``.
    """
    times, wanted, _ = _choose(data, options, limits)
    with opened(data, "video") as container:
        return _decode(container, wanted, times, limits)


def measure_video(data: bytes, options: Mapping[str, Any], limits: Limits) -> int:
    """Decoded size of the frames that ``decode_video`` samples, by the video's headers. Raises ``BadRequest``."""
    return _choose(data, options, limits)[2]


def _choose(data: bytes, options: Mapping[str, Any], limits: Limits) -> tuple[list[float], list[int], int]:
    """The times of all frames, the sampled ones, and their decoded bytes. Raises ``BadRequest``."""
    with opened(data, "video") as container:
        times = _frame_times(container, limits)
        wanted = choose_frames(times, options, limits)
        width, height = container.streams.video[0].codec_context.width, container.streams.video[0].codec_context.height
        check_size(width, height, limits)
        _check_decoded(len(wanted), width, height, limits)
        return times, wanted, len(wanted) * width * height * 3


def _frame_times(container: av.container.InputContainer, limits: Limits) -> list[float]:
    """When each frame is shown, in seconds, without decoding any."""
    if not container.streams.video:
        raise BadRequest("there are no images in the video")
    stream = container.streams.video[0]
    check_codec(stream, "video")
    times: list[float] = []
    for packet in container.demux(stream):
        if not packet.size:
            continue
        stamp = packet.pts if packet.pts is not None else packet.dts
        times.append(float(stamp * packet.time_base) if stamp is not None and packet.time_base else float(len(times)))
    if not times:
        raise BadRequest("there are no frames in the video")
    times.sort()
    if times[-1] - times[0] > limits.seconds:
        raise BadRequest(f"a video may last {limits.seconds:g} s, this one lasts {times[-1] - times[0]:.0f} s")
    return times


def _decode(
    container: av.container.InputContainer, wanted: Sequence[int], times: Sequence[float], limits: Limits
) -> Video:
    stream = container.streams.video[0]
    stream.thread_type = "NONE"
    stream.codec_context.thread_count = 1
    coming = iter(wanted)
    index = next(coming, None)
    frames: np.ndarray[Any, np.dtype[np.uint8]] | None = None
    shown: list[float] = []
    for number, frame in enumerate(container.decode(stream)):
        check_size(frame.width, frame.height, limits)
        if number != index:
            continue
        pixels = np.rot90(frame.to_ndarray(format="rgb24"), round(frame.rotation / 90) % 4)
        if frames is None:
            frames = np.empty((len(wanted), *pixels.shape), np.uint8)
        if pixels.shape != frames.shape[1:]:
            raise BadRequest("the video changes its size in the middle")
        frames[len(shown)] = pixels
        shown.append(times[number] - times[0])
        index = next(coming, None)
        if index is None:
            break
    if frames is None:
        raise BadRequest("none of the video's frames can be decoded")
    return Video(frames[: len(shown)], np.asarray(shown, np.float32))


def _check_decoded(frames: int, width: int, height: int, limits: Limits) -> None:
    size = frames * width * height * 3
    if size > limits.decoded:
        raise BadRequest(
            f"{frames} frames of {width} x {height} pixels are {size / (1 << 20):.0f} MiB, over the limit of "
            f"{limits.decoded / (1 << 20):g} (--max-decoded-mb): ask for fewer with num_frames, or send a smaller video"
        )
