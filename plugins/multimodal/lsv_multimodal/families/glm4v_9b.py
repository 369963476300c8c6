"""GLM-4V-9B's image: one square, between the tokens of its beginning and its end, all of it in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lsv.media.processor import Content, Processed
from lsv.request.media import Media, Modality, Positions
from lsv_base.errors import BadRequest
from lsv_multimodal.families.image_processor import check_options, pack, read_levels, run

# colours as CLIP's, which the published code has beside no file
_MEAN, _STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
_TOKENS = {"boi_token_id": 151339, "pad_token_id": 151329, "eoi_token_id": 151340}


class Glm4v9bPlacement:
    """Three tokens of the prompt for its image, of which the first becomes all: the one between the two others is that
    which ends texts, too.
    """

    marks: Mapping[Modality, str] = {"image": "<|begin_of_image|><|endoftext|><|end_of_image|>"}
    frames = False
    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._three = _read_tokens(config)
        self.placeholders = {"image": self._three[0]}

    def spell(self, text: str) -> str:
        """Marks are made of tokens."""
        return text

    def complete(self, ids: Sequence[int], items: int) -> Sequence[int]:
        """The prompt with one token for its image. Raises ``BadRequest`` for several, and for a part of its mark."""
        begin = self._three[0]
        images = max(items, list(ids).count(begin))
        if images > 1:
            raise BadRequest(f"this model takes one image a prompt, got {images}", param="messages")
        if begin not in ids:
            return ids
        at = list(ids).index(begin)
        if tuple(ids[at : at + 3]) != self._three:
            mark = self.marks["image"]
            raise BadRequest(f"the place of the image in a prompt must be {mark}, all of it", param="messages")
        return (*ids[: at + 1], *ids[at + 3 :])

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        """One place for all between an image's first and last embedding."""
        if not media:
            return None
        steps = np.ones(len(ids), np.int32)
        for item in media:
            steps[item.start + 2 : item.stop - 1] = 0
        places = np.cumsum(steps, dtype=np.int32) - 1
        return Positions(3, np.tile(places, (3, 1)).tobytes(), int(places[-1]) + 1 - len(ids))


class Glm4v9bProcessor:
    """The image as one square, whatever its shape."""

    rate = 0

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from transformers import CLIPImageProcessorPil

        vision = config["vision_config"]
        self._size = int(vision["image_size"])
        self._count = (self._size // int(vision["patch_size"]) // 2) ** 2
        self._three = _read_tokens(config)
        size = {"height": self._size, "width": self._size}
        self._processor = CLIPImageProcessorPil(size=size, do_center_crop=False, image_mean=_MEAN, image_std=_STD)
        self._levels = read_levels(self._processor)

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """See ``Resizing``: nothing is cut off."""
        return self._size, self._size

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        made = run(self._processor, content, do_rescale=False, do_normalize=False)
        inputs = {"pixel_values": pack(made["pixel_values"].astype(np.uint8)), "levels": pack(self._levels)}
        begin, pad, end = self._three
        return Processed(inputs, (begin, *(pad,) * self._count, end), 0, self._count + 2)


def _read_tokens(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Those of an image's beginning, of what is between, and of its end."""
    begin, between, end = (int(config.get(name, usual)) for name, usual in _TOKENS.items())
    return begin, between, end
