"""Chameleon's images: one square each, which becomes tokens of the vocabulary, between two that frame it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lsv.media.processor import Content, Processed
from lsv.request.media import Media, Modality, Positions
from lsv_base.errors import CheckpointError
from lsv_multimodal.families.image_processor import check_options, check_squares, load_image_processor, pack, run

_IMAGE, _BEGIN, _END = "<image>", "<racm3:break>", "<eoss>"
_TURN = "<reserved08706>"
"""What ends a question."""
_CODE = "IMGIMG"
_DIGITS = {ord(letter): digit for letter, digit in zip("ABCDEFGHIJ", "0123456789", strict=True)}


class ChameleonPlacement:
    """One token of the prompt for every image; a question ends with a token of its own."""

    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": _find(config, _IMAGE)}
        self._turn = _find(config, _TURN)

    def complete(self, ids: Sequence[int], items: int) -> Sequence[int]:
        """See ``Completing``."""
        return ids if ids[-1:] == [self._turn] else [*ids, self._turn]

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class ChameleonProcessor:
    """The image as one square, and the token of each code."""

    rate = 0

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._processor = load_image_processor(folder)
        codes = config["vq_config"]
        size, crop = int(codes.get("resolution", 512)), self._processor.crop_size
        check_squares((crop["height"], crop["width"]), size, taker="model")
        self._count = (size >> (len(codes.get("channel_multiplier", (1, 1, 2, 2, 4))) - 1)) ** 2
        self._image, self._begin, self._end = (_find(config, name) for name in (_IMAGE, _BEGIN, _END))
        self._tokens = _tokens_of_codes(config)

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        pixels = run(self._processor, content)["pixel_values"]
        tokens = (self._begin, *(self._image,) * self._count, self._end)
        return Processed({"pixel_values": pack(pixels), "tokens": pack(self._tokens)}, tokens, 1, self._count)


def _tokens_of_codes(config: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """int64 [codes]: letters from A on are the digits of a code in its token's name, and the last one ends it."""
    names = {name: token for name, token in config["vocabulary_map"].items() if name.startswith(_CODE)}
    codes = {int(name[len(_CODE) : -1].translate(_DIGITS)): token for name, token in names.items()}
    return np.array([codes[code] for code in range(len(codes))], np.int64)


def _find(config: Mapping[str, Any], name: str) -> int:
    """The id of a token that the family needs. Raises ``CheckpointError`` where the vocabulary has none."""
    found = config["vocabulary_map"].get(name)
    if not isinstance(found, int):
        raise CheckpointError(
            f"config.json: vocabulary_map has no token {name}, with which this family lays out prompts"
        )
    return found
