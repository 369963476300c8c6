"""GLM-4.1V's images, and its videos: pairs of frames between the marks of images, each with its second behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage

from lsv.errors import BadRequest
from lsv.media.processor import Image, Processed, Video
from lsv.request.media import EMBEDDINGS, Media
from lsv_multimodal.families.image_processor import pack
from lsv_multimodal.families.named_tokens import load_tokenizer
from lsv_multimodal.families.qwen2_vl import Qwen2VLPlacement, Qwen2VLProcessor, choose_sizes

_TOKENS = {"image_token_id": 151343, "video_token_id": 151344}
_MARKS = {"image_start_token_id": 151339, "image_end_token_id": 151340}
_VIDEO = (112 * 112, 28 * 28 * 2 * 30000)
"""Least and most pixels of all frames of a video together."""


class Glm4vPlacement(Qwen2VLPlacement):
    """As Qwen2-VL's; each pair of frames of a video has places of its own, behind the text before it."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, {**_TOKENS, **config})

    def grid(self, item: Media) -> npt.NDArray[Any]:
        if item.modality == "video" and EMBEDDINGS in item.inputs:
            raise BadRequest("embeddings of a video have no seconds written between them: give those of images")
        return super().grid(item)


class Glm4vProcessor(Qwen2VLProcessor):
    """``min_pixels`` and ``max_pixels`` bound an image that is shown in both frames of a patch, or all of a video."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, {**_TOKENS, **config})
        self._marks = tuple(int(config.get(name, default)) for name, default in _MARKS.items())
        self._tokenizer = load_tokenizer(folder, "the seconds of a video")

    def frame_pixels(self, folder: Path, usual: tuple[int, int]) -> tuple[int, int]:
        return super().frame_pixels(folder, _VIDEO)

    def _cut_frames(self, video: Video, options: Mapping[str, Any]) -> list[tuple[npt.NDArray[Any], tuple[int, int]]]:
        count, *size = video.frames.shape[:3]
        span, unit = self._processor.temporal_patch_size, self._processor.patch_size * self._processor.merge_size
        height, width = fit(count + -count % span, (size[0], size[1]), unit, choose_sizes(options, self._frame))
        return [self._cut(Image(_resized(frame, height, width)), do_resize=False) for frame in video.frames]

    def _process_video(self, video: Video, options: Mapping[str, Any]) -> Processed:
        pairs, grid = self._pair_frames(video, options)
        seconds = video.times[:: self._processor.temporal_patch_size].astype(np.int64).tolist()
        parts = [self._show(pair, grid, second) for pair, second in zip(pairs, seconds, strict=True)]
        return msgspec.structs.replace(parts[0], more=tuple(parts[1:]))

    def _show(self, pair: npt.NDArray[Any], grid: tuple[int, int], second: int) -> Processed:
        """A pair of frames: [patches, channels, frames, pixels]."""
        count = math.prod(grid) // self._processor.merge_size**2
        inputs = {"pixel_values": pair, "grid": np.array([1, *grid]), "levels": self._levels}
        start, end = self._marks
        written = self._tokenizer.encode(str(second), add_special_tokens=False).ids
        tokens = (start, *(self._tokens["image"],) * count, end, *written)
        return Processed({name: pack(array) for name, array in inputs.items()}, tokens, 1, count)


def fit(frames: int, size: tuple[int, int], unit: int, bounds: tuple[int, int]) -> tuple[int, int]:
    """The height and width, multiples of ``unit``, at which so many frames have pixels within ``bounds``: those nearest
    to ``size`` if these do.
    """
    scale = max(1.0, unit / min(size))
    height, width = (int(side * scale) for side in size)
    nearest = round(height / unit) * unit, round(width / unit) * unit
    least, most = bounds
    if frames * math.prod(nearest) > most:
        shrink = math.sqrt(frames * height * width / most)
        return _most(height / shrink, unit), _most(width / shrink, unit)
    if frames * math.prod(nearest) < least:
        grow = math.sqrt(least / (frames * height * width))
        return math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
    return nearest


def _most(side: float, unit: int) -> int:
    return max(unit, math.floor(side / unit) * unit)


def _resized(frame: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.asarray(PilImage.fromarray(frame).resize((width, height), PilImage.Resampling.BICUBIC))
