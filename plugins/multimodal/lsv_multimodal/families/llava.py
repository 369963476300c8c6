"""LLaVA's images: one square, or tiles at a resolution near the image's own; and the tokens they take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsv.media.processor import Content, Image, Processed
from lsv.request.media import Media, Modality, Positions
from lsv_multimodal.families.image_processor import check_options, check_squares, load_image_processor, pack, run


class LlavaPlacement:
    """One token of the prompt for every image; tokens stand one after the other."""

    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": _image_token(config)}

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class LlavaProcessor:
    """LLaVA-1.5: the image as one square, cut as the checkpoint's image processor says."""

    rate = 0

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._processor = load_image_processor(folder)
        vision = config["vision_config"]
        clip = vision.get("model_type", "clip_vision_model") == "clip_vision_model"
        self._size = int(vision.get("image_size", 224))
        self._side = self._size // int(vision.get("patch_size", 32 if clip else 16))
        drops_first = config.get("vision_feature_select_strategy", "default") == "default"
        self._tokens = self._side**2 + clip - drops_first
        self._token = _image_token(config)

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        made = run(self._processor, content)
        return self._processed({"pixel_values": self._check(made["pixel_values"])}, self._tokens)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """See ``Resizing``: the image processor resizes, if it does, before it cuts a square out of the middle."""
        size = self._processor.size if self._processor.do_resize else {}
        if "shortest_edge" in size:
            scale = size["shortest_edge"] / min(width, height)
            return math.ceil(width * scale), math.ceil(height * scale)
        return size.get("width", width), size.get("height", height)

    def _check(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        check_squares(pixels.shape[-2:], self._size)
        return pixels

    def _processed(self, inputs: Mapping[str, npt.NDArray[Any]], count: int) -> Processed:
        return Processed({name: pack(array) for name, array in inputs.items()}, (self._token,) * count, 0, count)


class LlavaNextProcessor(LlavaProcessor):
    """LLaVA-NeXT: the image whole, then tiles over it; what is padding in them is left out."""

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        made = run(self._processor, content)
        assert isinstance(content, Image), "run refuses the rest"
        layout = self._layout(*content.pixels.shape[:2])
        _, _, top, bottom, left, right = layout
        count = self._side**2 + (bottom - top) * (right - left + 1)
        pixels = self._check(made["pixel_values"][0])
        return self._processed({"pixel_values": pixels, "layout": np.array(layout, np.int64)}, count)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        return width, height  # the layout of the tiles depends on the image's own size

    def _layout(self, height: int, width: int) -> tuple[int, int, int, int, int, int]:
        """Rows and columns of tiles, and which of their patches show the image: top, bottom, left, right."""
        from transformers.image_processing_utils import select_best_resolution

        best = select_best_resolution((height, width), self._processor.image_grid_pinpoints)
        rows, columns = best[0] // self._size, best[1] // self._size
        high, wide = rows * self._side, columns * self._side
        if width / height > wide / high:
            edge = (high - int(round(height * (wide / width), 7))) // 2
            return rows, columns, edge, high - edge, 0, wide
        edge = (wide - int(round(width * (high / height), 7))) // 2
        return rows, columns, 0, high, edge, wide - edge


def _image_token(config: Mapping[str, Any]) -> int:
    return int(config.get("image_token_index", config.get("image_token_id", 32000)))
