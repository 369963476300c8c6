"""GLM-4.1V's images, and its videos: pairs of frames between the marks of images, each with its second behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage

from lsv.media.processor import Image, Processed, Video
from lsv.request.media import EMBEDDINGS, Media
from lsv_base.errors import BadRequest
from lsv_multimodal.families.image_processor import pack
from lsv_multimodal.families.named_tokens import load_tokenizer
from lsv_multimodal.families.qwen2_vl import Qwen2VLPlacement, Qwen2VLProcessor, choose_sizes

_TOKENS = {"image_token_id": 151343, "video_token_id": 151344}
_MARKS = {"image_start_token_id": 151339, "image_end_token_id": 151340}


class Glm4vPlacement(Qwen2VLPlacement):
    """As Qwen2-VL's; each pair of frames of a video has places of its own, behind the text before it."""

    tokens: ClassVar[Mapping[str, int]] = _TOKENS
    """The placeholders where config.json leaves them out, unless they are Qwen2-VL's."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, {**self.tokens, **config})

    def grid(self, item: Media) -> npt.NDArray[Any]:
        if item.modality == "video" and EMBEDDINGS in item.inputs:
            raise BadRequest("embeddings of a video have no seconds written between them: give those of images")
        return super().grid(item)


class Glm4vProcessor(Qwen2VLProcessor):
    """``min_pixels`` and ``max_pixels`` bound an image that is shown in both frames of a patch, or all of a video."""

    tokens: ClassVar[Mapping[str, int]] = _TOKENS
    """As those of ``Glm4vPlacement``."""
    marks: ClassVar[Mapping[str, int]] = _MARKS
    """The tokens before and behind a pair of frames: their keys in config.json, and which they are without."""
    video: ClassVar[tuple[int, int]] = (112 * 112, 28 * 28 * 2 * 30000)
    """Least and most pixels of all frames of a video together, where the checkpoint does not say."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, {**self.tokens, **config})
        self._marks = tuple(int(config.get(name, default)) for name, default in self.marks.items())
        self._tokenizer = load_tokenizer(folder, "the seconds of a video")

    def frame_pixels(self, folder: Path, usual: tuple[int, int]) -> tuple[int, int]:
        return super().frame_pixels(folder, self.video)

    def _cut_frames(self, video: Video, options: Mapping[str, Any]) -> list[tuple[npt.NDArray[Any], tuple[int, int]]]:
        count, *size = video.frames.shape[:3]
        unit = self._processor.patch_size * self._processor.merge_size
        height, width = fit(self.counted(count), (size[0], size[1]), unit, choose_sizes(options, self._frame))
        return [self._cut(Image(_resized(frame, height, width)), do_resize=False) for frame in video.frames]

    def _process_video(self, video: Video, options: Mapping[str, Any]) -> Processed:
        pairs, grid = self._pair_frames(video, options)
        span = self._processor.temporal_patch_size
        times = np.pad(video.times, (0, -len(video.times) % span), mode="edge").reshape(-1, span)
        parts = [self._show(pair, grid, seen) for pair, seen in zip(pairs, times, strict=True)]
        return msgspec.structs.replace(parts[0], more=tuple(parts[1:]))

    def counted(self, frames: int) -> int:
        """The frames of a video that share its pixels."""
        return frames + -frames % int(self._processor.temporal_patch_size)

    def lay_out(self, count: int, times: npt.NDArray[np.float32]) -> tuple[tuple[int, ...], int]:
        """The tokens of a pair of frames seen at ``times``, and the first of its ``count`` placeholders in them."""
        start, end = self._marks
        written = self._tokenizer.encode(str(int(times[0])), add_special_tokens=False).ids
        return (start, *(self._tokens["image"],) * count, end, *written), 1

    def _show(self, pair: npt.NDArray[Any], grid: tuple[int, int], times: npt.NDArray[np.float32]) -> Processed:
        """A pair of frames: [patches, channels, frames, pixels]."""
        count = math.prod(grid) // self._processor.merge_size**2
        inputs = {"pixel_values": pair, "grid": np.array([1, *grid]), "levels": self._levels}
        tokens, first = self.lay_out(count, times)
        return Processed({name: pack(array) for name, array in inputs.items()}, tokens, first, count)


def fit(frames: int, size: tuple[int, int], unit: int, bounds: tuple[int, int]) -> tuple[int, int]:
    """The height and width, multiples of ``unit``, at which so many frames have pixels within ``bounds``: those nearest
    to ``size`` if these do. An odd number of frames counts as the even one that it is rounded to there.
    """
    even = round(frames / 2) * 2
    scale = max(1.0, unit / min(size))
    height, width = (int(side * scale) for side in size)
    nearest = round(height / unit) * unit, round(width / unit) * unit
    least, most = bounds
    if even * math.prod(nearest) > most:
        shrink = math.sqrt(frames * height * width / most)
        return _most(height / shrink, unit), _most(width / shrink, unit)
    if even * math.prod(nearest) < least:
        grow = math.sqrt(least / (frames * height * width))
        return math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
    return nearest


def _most(side: float, unit: int) -> int:
    return max(unit, math.floor(side / unit) * unit)


def _resized(frame: npt.NDArray[np.uint8], height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.asarray(PilImage.fromarray(frame).resize((width, height), PilImage.Resampling.BICUBIC))
