"""Images of families with SigLIP's tower, as one square, and where they stand in prompts: Gemma 3's and PaliGemma's."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lsv.media.processor import Content, Processed
from lsv.request.media import Media, Modality, Positions
from lsv.resolve.locate import read_object
from lsv_base.errors import BadRequest
from lsv_multimodal.families.image_processor import (
    check_options,
    check_squares,
    load_image_processor,
    pack,
    read_levels,
    run,
)

_NAMES = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
"""What tokenizer_config.json calls Gemma 3's tokens, and what these usually are."""


class SquareProcessor(ABC):
    """An image as one square of the tower's size, worth as many tokens as the family says."""

    rate = 0
    options: Mapping[str, Any] = {}
    """What the image processor is told beside the image."""
    usual = 262144
    """The token that stands for an embedding where config.json does not say it."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._vision = config.get("vision_config") or {}
        self._token, self._count = placeholder(config, self.usual), self.count_tokens(config)
        if not self._vision:
            return
        self._processor = load_image_processor(folder)
        self._levels = read_levels(self._processor)
        self._size = int(self._vision.get("image_size", 224))
        check_squares(self.resized(1, 1), self._size)

    @abstractmethod
    def count_tokens(self, config: Mapping[str, Any]) -> int:
        """Embeddings of an image."""

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """See ``Resizing``: nothing is cut off."""
        size = self._processor.size if self._vision and self._processor.do_resize else {}
        return size.get("width", width), size.get("height", height)

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        if not self._vision:
            raise BadRequest("this model takes text alone: its config.json has no vision_config")
        made = run(self._processor, content, do_rescale=False, do_normalize=False, **self.options)
        inputs = {"pixel_values": pack(made["pixel_values"].astype(np.uint8)), "levels": pack(self._levels)}
        return Processed(inputs, (self._token,) * self._count, 0, self._count)


class Gemma3Processor(SquareProcessor):
    """Without the crops that its image processor can add to an image."""

    options: Mapping[str, Any] = {"do_pan_and_scan": False}

    def count_tokens(self, config: Mapping[str, Any]) -> int:
        return int(config.get("mm_tokens_per_image", 256))


class Gemma3Placement:
    """One token of the prompt for every image, between two that say where it begins and ends, and line breaks around
    these. Templates write the first of the two alone.
    """

    frames = False
    marks: Mapping[Modality, str]
    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": placeholder(config)}
        named = read_object(folder / "tokenizer_config.json") or {}
        begin, token, end = (str(named.get(name) or usual) for name, usual in _NAMES.items())
        self.marks = {"image": begin}
        self._mark = re.compile(f"{re.escape(begin)}(?!{re.escape(token)})")
        self._spelled = f"\n\n{begin}{token}{end}\n\n"

    def spell(self, text: str) -> str:
        """A mark that its placeholder follows is spelt already."""
        return self._mark.sub(lambda mark: self._spelled, text)

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class PaliGemmaProcessor(SquareProcessor):
    """As many tokens as the tower has patches."""

    usual = 256000

    def count_tokens(self, config: Mapping[str, Any]) -> int:
        vision = config.get("vision_config") or {}
        return (int(vision.get("image_size", 224)) // int(vision.get("patch_size", 14))) ** 2


class PaliGemmaPlacement:
    """One token of the prompt for every image. A prompt is its images, the token that it begins with, a text and a line
    break; a text is completed to that, by one image where it has none.
    """

    frames = True
    marks: Mapping[Modality, str] = {"image": "<image>"}
    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": placeholder(config, 256000)}
        begin = (read_object(folder / "tokenizer_config.json") or {}).get("bos_token") or "<bos>"
        self._begin = str(begin.get("content") if isinstance(begin, Mapping) else begin)

    def spell(self, text: str) -> str:
        """A prompt that has its beginning is spelt already."""
        mark = self.marks["image"]
        if self._begin in text:
            return text
        images, last, behind = text.rpartition(mark)
        return f"{images}{last or mark}{self._begin}{behind}\n"

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


def placeholder(config: Mapping[str, Any], usual: int = 262144) -> int:
    """The token that stands for an embedding."""
    return int(config.get("image_token_index", config.get("image_token_id", usual)))
