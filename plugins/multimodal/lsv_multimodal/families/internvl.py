"""InternVL's images: tiles of one size over each, the whole image once more behind them, and the tokens they take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lsv.media.processor import Content, Processed
from lsv.request.media import Media, Modality, Positions
from lsv.resolve.locate import read_object
from lsv_base.errors import BadRequest
from lsv_multimodal.families.image_processor import (
    check_counts,
    check_options,
    check_squares,
    load_image_processor,
    pack,
    read_levels,
    run,
)
from lsv_multimodal.families.named_tokens import find_token

_CONTEXT = "<IMG_CONTEXT>"
_MARK = "<image>"
_SPELLED = f"<img>{_CONTEXT}</img>"
_MARKS = re.compile(rf"(?:<img>)?(?:{_MARK}|{_CONTEXT})(?:</img>)?")
_FILE = "preprocessor_config.json"
# colours as ImageNet's, which the published code has beside no file
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


class InternVLPlacement:
    """One token of the prompt for every image, between two that say where it begins and ends. In texts it is a mark
    that is no token.
    """

    marks: Mapping[Modality, str] = {"image": _MARK}
    frames = False
    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": _context_token(folder, config)}

    def spell(self, text: str) -> str:
        """Both marks that templates of the family write, which may stand between those two already."""
        return _MARKS.sub(_SPELLED, text)

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class InternVLProcessor:
    """transformers' form of the family. ``min_patches`` and ``max_patches`` bound the tiles of an image, of which none
    may have more than the checkpoint says.
    """

    rate = 0
    options = ("min_patches", "max_patches")

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._processor = self.make_processor(folder, config)
        self._levels = read_levels(self._processor)
        self._token = _context_token(folder, config)
        vision = config["vision_config"]
        self._size = _side(vision.get("image_size", 448))
        side = self._size // _side(vision.get("patch_size", 14)) * config.get("downsample_ratio", 0.5)
        self._each = int(side) ** 2
        made = self._processor.size
        check_squares((made["width"], made["height"]), self._size, "tiles")

    def make_processor(self, folder: Path, config: Mapping[str, Any]) -> Any:
        """The image processor, whose ``min_patches`` and ``max_patches`` are the checkpoint's."""
        processor = load_image_processor(folder)
        processor.crop_to_patches = True
        return processor

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options, self.options)
        least, most = self._bounds(options)
        made = run(
            self._processor, content, min_patches=least, max_patches=most, do_rescale=False, do_normalize=False
        )  # fmt: skip
        tiles = self.choose(made["pixel_values"].astype(np.uint8))
        count = len(tiles) * self._each
        inputs = {"pixel_values": pack(tiles), "levels": pack(self._levels)}
        return Processed(inputs, (self._token,) * count, 0, count)

    def choose(self, tiles: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Those that are shown, of all tiles and, where there are several, the whole image."""
        return tiles

    def _bounds(self, options: Mapping[str, Any]) -> tuple[int, int]:
        """Fewest and most tiles. Raises ``BadRequest``."""
        check_counts(options, self.options)
        own = (self._processor.min_patches, self._processor.max_patches)
        given = [options.get(name) for name in self.options]
        most = given[1] or own[1]
        least = given[0] or min(own[0], most)
        if most > own[1] or least > most:
            raise BadRequest(
                f"{self.options[0]}={least} and {self.options[1]}={most} must be in order, and at most {own[1]}",
                param="mm_processor_kwargs",
            )
        return least, most


class InternVLChatProcessor(InternVLProcessor):
    """The published form: config.json says what is made of an image."""

    options = ("min_dynamic_patch", "max_dynamic_patch")

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, config)
        self._whole = bool(config.get("use_thumbnail", False))

    def make_processor(self, folder: Path, config: Mapping[str, Any]) -> Any:
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

        size, colours = _side(config["vision_config"].get("image_size", 448)), read_object(folder / _FILE) or {}
        tiled = config.get("dynamic_image_size", False)
        return GotOcr2ImageProcessorPil(
            size={"height": size, "width": size},
            image_mean=colours.get("image_mean") or _MEAN,
            image_std=colours.get("image_std") or _STD,
            crop_to_patches=True,
            min_patches=config.get("min_dynamic_patch", 1) if tiled else 1,
            max_patches=config.get("max_dynamic_patch", 6) if tiled else 1,
        )

    def choose(self, tiles: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return tiles if self._whole or len(tiles) == 1 else tiles[:-1]


def _side(size: int | Sequence[int]) -> int:
    return int(size if isinstance(size, int) else size[0])


def _context_token(folder: Path, config: Mapping[str, Any]) -> int:
    """The token that stands for an embedding. Raises ``CheckpointError`` where no file names it."""
    token = config.get("image_token_id")
    return find_token(folder, _CONTEXT) if token is None else int(token)
