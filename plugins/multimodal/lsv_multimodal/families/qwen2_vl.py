"""Qwen2-VL's and Qwen2.5-VL's images and video: patches at their own resolution, and where they stand in a prompt."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsv.media.processor import Content, Image, Processed, Video
from lsv.media.shared import read_data
from lsv.request.media import Media, Modality, Positions
from lsv_base.errors import BadRequest
from lsv_base.untrusted.files import read_text
from lsv_multimodal.families.image_processor import (
    check_counts,
    check_options,
    load_image_processor,
    pack,
    read_levels,
    run,
)

_SIZES = ("min_pixels", "max_pixels")
# these choose a video's frames before it comes here; images have no use for them
_SAMPLING = ("fps", "num_frames")
# of a frame of a video, and of all its frames, as Qwen's own preparation of videos has them (qwen-vl-utils)
_FRAME_TOKENS = (128, 768)
_VIDEO_TOKENS = 115_200
_SPARE = 1.05


class Qwen2VLPlacement:
    """One token of the prompt for every item. Its embeddings stand at their time, height and width from where the text
    before it ended; the text behind it goes on after the largest of these (Wang et al. 2024, section 2.1).
    """

    placeholders: Mapping[Modality, int]
    _paced = False

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = _placeholders(config)
        self._merge = int(config["vision_config"].get("spatial_merge_size", 2))

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        if not media:
            return None
        steps = self.steps(ids, media)
        parts: list[npt.NDArray[Any]] = []
        done = place = 0
        for item in media:
            parts.append(_in_line(place, steps[done : item.start]))
            place += int(steps[done : item.start].sum())
            parts.append(self.grid(item) + place)
            place, done = self.behind(item, parts[-1]), item.stop
        parts.append(_in_line(place, steps[done:]))
        places = np.concatenate(parts, axis=1)
        return Positions(3, places.astype(np.int32).tobytes(), int(places.max()) + 1 - len(ids))

    def steps(self, ids: Sequence[int], media: Sequence[Media]) -> npt.NDArray[np.int64]:
        """How far each token of the text stands behind the one before it."""
        return np.ones(len(ids), np.int64)

    def behind(self, item: Media, places: npt.NDArray[Any]) -> int:
        """Where the text behind an item goes on, whose embeddings stand at ``places`` [3, count]."""
        return int(places.max()) + 1

    def grid(self, item: Media) -> npt.NDArray[Any]:
        """Times, heights and widths of an item's embeddings, from 0 on: [3, count].

        Raises ``BadRequest`` where embeddings come with a grid that is not theirs, ``KeyError`` without one.
        """
        sizes = self.sizes(item)
        if math.prod(sizes) != item.count:
            raise _no_grid(item)
        return self.cells(item, sizes)

    def sizes(self, item: Media) -> list[int]:
        """Of the grid of an item's embeddings, in time, height and width."""
        patches = read_array(item, "grid").tolist()
        merged = [int(size) for size in (*patches[:1], *(size // self._merge for size in patches[1:]))]
        if len(merged) != 3 or min(merged) < 1:
            raise _no_grid(item)
        return merged

    def cells(self, item: Media, sizes: Sequence[int]) -> npt.NDArray[Any]:
        """The places of a grid of such ``sizes``: [3, cells]."""
        grid = np.indices(sizes).reshape(3, -1)
        if self._paced and item.modality == "video":
            times = self.times(grid[0], read_array(item, "pace")[:1])
            _check_times(times, item.count)
            grid[0] = times.astype(np.int64)
        return grid

    def times(self, frames: npt.NDArray[Any], pace: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Where ``frames`` stand in time; in single precision, as the times were made that models were trained with."""
        return frames.astype(np.float32) * pace.astype(np.float32)


class Qwen25VLPlacement(Qwen2VLPlacement):
    """Pairs of a video's frames stand as far apart as their ``pace`` says."""

    _paced = True


class Qwen2VLProcessor:
    """``min_pixels`` and ``max_pixels`` bound the size of an image or frame; nothing may exceed the checkpoint's."""

    rate = 0
    _tempo: float | None = None
    """Places in time that a second takes; None counts pairs of frames."""
    _options: tuple[str, ...] = _SIZES + _SAMPLING

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._processor = load_image_processor(folder)
        self._levels = read_levels(self._processor)
        self._tokens = _placeholders(config)
        unit = (self._processor.patch_size * self._processor.merge_size) ** 2
        size = self._processor.size
        self._image = (int(size["shortest_edge"]), int(size["longest_edge"]))
        self._frame = self.frame_pixels(folder, (_FRAME_TOKENS[0] * unit, _FRAME_TOKENS[1] * unit))
        self._video = _VIDEO_TOKENS * unit

    def frame_pixels(self, folder: Path, usual: tuple[int, int]) -> tuple[int, int]:
        """Least and most pixels of a frame: the checkpoint's, where it has a file about video."""
        file = folder / "video_preprocessor_config.json"
        given = json.loads(read_text(file)) if file.exists() else {}
        size = given.get("size") or {}
        least = given.get("min_pixels") or size.get("shortest_edge") or usual[0]
        most = given.get("max_pixels") or size.get("longest_edge") or usual[1]
        return int(least), int(most)

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options, self._options)
        if isinstance(content, Video):
            return self._process_video(content, options)
        least, most = choose_sizes(options, self._image)
        pixels, grid = self._cut(content, size={"shortest_edge": least, "longest_edge": most})
        return self._processed("image", {"pixel_values": pixels[:, :, None], "grid": np.array([1, *grid])})

    def _process_video(self, video: Video, options: Mapping[str, Any]) -> Processed:
        pairs, grid = self._pair_frames(video, options)
        inputs = {"pixel_values": pairs.reshape(-1, *pairs.shape[2:]), "grid": np.array([len(pairs), *grid])}
        if self._tempo is not None:
            inputs["pace"] = np.array(
                [self._tempo * self._processor.temporal_patch_size * _interval(video)], np.float32
            )
        return self._processed("video", inputs)

    def _pair_frames(self, video: Video, options: Mapping[str, Any]) -> tuple[npt.NDArray[Any], tuple[int, int]]:
        """Frames in pairs [pairs, patches, channels, frames of a pair, pixels], the last one twice where their number
        is odd; and the patches of a frame in height and width.
        """
        made = self._cut_frames(video, options)
        span = self._processor.temporal_patch_size
        frames = [pixels for pixels, _ in made]
        frames += [frames[-1]] * (-len(frames) % span)
        return np.stack(frames).reshape(-1, span, *frames[0].shape).transpose(0, 2, 3, 1, 4), made[0][1]

    def _cut_frames(self, video: Video, options: Mapping[str, Any]) -> list[tuple[npt.NDArray[Any], tuple[int, int]]]:
        """Each frame as ``_cut`` has it."""
        least, most = choose_sizes(options, self._frame)
        span = self._processor.temporal_patch_size
        most = max(min(most, self._video * span // len(video.frames)), int(least * _SPARE))
        size = {"shortest_edge": least, "longest_edge": most}
        return [self._cut(Image(frame), size=size) for frame in video.frames]

    def _cut(self, content: Content, **options: Any) -> tuple[npt.NDArray[Any], tuple[int, int]]:
        """Patches uint8 [patches, channels, pixels], and how many in height and width."""
        made = run(self._processor, content, do_rescale=False, do_normalize=False, **options)
        _, height, width = made["image_grid_thw"][0].tolist()
        # the image processor shows an image in all frames of a patch
        pixels = made["pixel_values"].reshape(height * width, 3, self._processor.temporal_patch_size, -1)
        return pixels[:, :, 0].astype(np.uint8), (height, width)

    def _processed(self, modality: Modality, inputs: Mapping[str, npt.NDArray[Any]]) -> Processed:
        count = int(inputs["grid"].prod()) // self._processor.merge_size**2
        packed = {name: pack(array) for name, array in {**inputs, "levels": self._levels}.items()}
        return Processed(packed, (self._tokens[modality],) * count, 0, count)


class Qwen25VLProcessor(Qwen2VLProcessor):
    """A clip's times are those of its frames in seconds, ``tokens_per_second`` of the config to each."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        self._tempo = float(config["vision_config"].get("tokens_per_second", 4))


def _placeholders(config: Mapping[str, Any]) -> dict[Modality, int]:
    return {"image": token_of(config, "image", 151655), "video": token_of(config, "video", 151656)}


def token_of(config: Mapping[str, Any], modality: Modality, default: int) -> int:
    """The placeholder of a modality, by either name that it has in config.json."""
    return int(config.get(f"{modality}_token_id", config.get(f"{modality}_token_index", default)))


def read_array(item: Media | Processed, name: str) -> npt.NDArray[Any]:
    """The numbers of an input, one after the other. Raises ``KeyError``."""
    array = item.inputs[name]
    return np.frombuffer(read_data(array), array.dtype)


def _no_grid(item: Media) -> BadRequest:
    patches = read_array(item, "grid").tolist()
    return BadRequest(f"{item.count} embeddings are no grid of {patches} patches in time, height and width")


def _check_times(times: npt.NDArray[Any], count: int) -> None:
    """No token may stand behind where it would with text alone: nobody has planned for places that far."""
    if not np.isfinite(times).all() or times.min() < 0 or times.max() >= count:
        raise BadRequest("the frames of the video are too small for the time between them: ask for more with fps")


def _in_line(place: int, steps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The places of text, the first of which stands at ``place``."""
    return np.tile(place - 1 + np.cumsum(steps), (3, 1))


def _interval(video: Video) -> float:
    """Seconds from a frame to the next."""
    steps = len(video.times) - 1
    return float(video.times[-1] - video.times[0]) / steps if steps else 0.0


def choose_sizes(options: Mapping[str, Any], own: tuple[int, int]) -> tuple[int, int]:
    """Least and most pixels. Raises ``BadRequest`` for numbers that are no sizes, or more than ``own``."""
    check_counts(options, _SIZES)
    most = options.get("max_pixels") or own[1]
    least = options.get("min_pixels") or min(own[0], most)
    if most > own[1]:
        raise BadRequest(f"max_pixels may be at most {own[1]}, got {most}", param="mm_processor_kwargs")
    if least > most:
        raise BadRequest(f"min_pixels={least} is more than max_pixels={most}", param="mm_processor_kwargs")
    return least, most
