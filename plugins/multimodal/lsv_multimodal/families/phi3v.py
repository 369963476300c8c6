"""Phi-3-vision's images: as many squares as fit over each, and the tokens these and the whole image take."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsv.media.processor import Content, Processed
from lsv.request.media import Media, Modality, Positions
from lsv.resolve.locate import read_object
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.families.image_processor import check_image, check_options, make_levels, pack
from lsv_multimodal.families.named_tokens import find_token, load_tokenizer

_IMAGE = "<|image|>"
_MARK = re.compile(r"<\|image(?:_([0-9]+))?\|>")
_FILE = "preprocessor_config.json"
_OPTION = "num_crops"
_MOST = 16
"""As many crops as the model was trained with; 3.5 is published with fewer, for several images."""
# colours as CLIP's
_MEAN, _STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


class Phi3VPlacement:
    """One token of the prompt for every image. In texts it has a number, and what stands between images is tokenised
    each for itself, with what the tokenizer puts around a text.
    """

    marks: Mapping[Modality, str] = {"image": _IMAGE}
    frames = True
    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": find_token(folder, _IMAGE)}
        self._begin, self._end = _read_frame(folder)

    def spell(self, text: str) -> str:
        """A text without images is left to whoever tokenises it.

        Raises ``BadRequest`` for images that are not numbered by the order they are given in.
        """
        chunks, start = [], 0
        for place, mark in enumerate(_MARK.finditer(text), 1):
            if mark[1] not in (None, str(place)):
                raise BadRequest(
                    f"the prompt has {mark[0]:.40} where <|image_{place}|> is expected: images have the numbers 1, 2 … "
                    "in the order they are given in",
                    param="messages",
                )
            chunks.append(text[start : mark.start()])
            start = mark.end()
        if not chunks:
            return text
        return _IMAGE.join(f"{self._begin}{chunk}{self._end}" for chunk in (*chunks, text[start:]))

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class Phi3VProcessor:
    """``num_crops`` says how many squares an image may have: as many as the checkpoint says, or 16 if that is fewer."""

    rate = 0

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        settings = read_object(folder / _FILE)
        if settings is None:
            raise CheckpointError(f"{folder} has no image processor: {_FILE} is missing")
        self._levels = make_levels(settings.get("image_mean") or _MEAN, settings.get("image_std") or _STD)
        self._crops = crops = settings.get(_OPTION, 1)
        if not _is_count(crops):
            raise CheckpointError(f"{folder / _FILE}: {_OPTION} must be a positive whole number, got {crops!r:.40}")
        vision = config.get("vision_config") or {}
        self._size = int(vision.get("image_size", 336))
        self._side = self._size // int(vision.get("patch_size", 14)) // 2
        self._token = find_token(folder, _IMAGE)

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options, (_OPTION,))
        fitted = fit(check_image(content), self._size, self._most(options))
        rows, columns = (side // self._size for side in fitted.shape[:2])
        crops = fitted.reshape(rows, self._size, columns, self._size, 3).transpose(0, 2, 4, 1, 3)
        inputs = {
            "pixel_values": pack(crops.reshape(-1, 3, self._size, self._size)),
            "levels": pack(self._levels),
            "layout": pack(np.array((rows, columns), np.int64)),
        }
        count = self._count(rows, columns) + 1 + self._count(1, 1)
        return Processed(inputs, (self._token,) * count, 0, count)

    def _count(self, rows: int, columns: int) -> int:
        """Embeddings of so many squares, with one behind each line of them."""
        return rows * self._side * (columns * self._side + 1)

    def _most(self, options: Mapping[str, Any]) -> int:
        """Squares that an image may have. Raises ``BadRequest``."""
        given, most = options.get(_OPTION, self._crops), max(self._crops, _MOST)
        if not _is_count(given) or given > most:
            raise BadRequest(
                f"{_OPTION} must be a whole number from 1 to {most}, got {given!r:.40}", param="mm_processor_kwargs"
            )
        return int(given)


def fit(pixels: npt.NDArray[np.uint8], size: int, most: int) -> npt.NDArray[np.uint8]:
    """An image uint8 [height, width, 3] in at most ``most`` squares of ``size``: its longer side fills as many of them
    as there can be, and along the shorter one it is white on both sides of the image.
    """
    from PIL import Image

    height, width = pixels.shape[:2]
    if width < height:
        return fit(pixels.swapaxes(0, 1), size, most).swapaxes(0, 1)
    ratio = width / height
    wide = size * max(columns for columns in range(1, most + 1) if columns * math.ceil(columns / ratio) <= most)
    high = max(1, int(wide / ratio))
    image = Image.fromarray(np.ascontiguousarray(pixels)).resize((wide, high), Image.Resampling.BILINEAR)
    white = -high % size
    return np.pad(np.asarray(image), ((white // 2, white - white // 2), (0, 0), (0, 0)), constant_values=255)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _read_frame(folder: Path) -> tuple[str, str]:
    """The special tokens that the tokenizer puts before and behind a text, as a text.

    Raises ``CheckpointError`` where there is no tokenizer.json, which says it.
    """
    framed = load_tokenizer(folder, "the texts between images").encode("a")
    inner = [place for place, special in enumerate(framed.special_tokens_mask) if not special]
    return "".join(framed.tokens[: inner[0]]), "".join(framed.tokens[inner[-1] + 1 :])
