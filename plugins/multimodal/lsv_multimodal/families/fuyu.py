"""Fuyu's images: patches row by row, before the text of a prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from lsv.media.processor import Content, Processed
from lsv.request.media import Media, Modality, Positions
from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import check_regular
from lsv_multimodal.families.image_processor import check_options, check_squares, load_image_processor, pack, run
from lsv_multimodal.families.leading import text_behind

_NEWLINE = "|NEWLINE|"
_ANSWER = "<0x04>"


class FuyuPlacement:
    """A prompt is its image, the token that texts begin with, a text, and the one that answers begin with."""

    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": _image_token(config)}
        text = config.get("text_config") or config
        self._begin = int(config.get("bos_token_id") or text.get("bos_token_id") or 1)
        self._answer = _find(folder, _ANSWER)

    def complete(self, ids: Sequence[int], items: int) -> Sequence[int]:
        """See ``Completing``: wherever the image's placeholder was, if there was one, it comes first."""
        image = self.placeholders["image"]
        text = text_behind(ids, image, items)
        begin = [] if text[:1] == [self._begin] else [self._begin]
        end = [] if text[-1:] == [self._answer] else [self._answer]
        return [image, *begin, *text, *end]

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class FuyuProcessor:
    """The image at its own size, or as large as the checkpoint allows, padded to whole patches."""

    rate = 0

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._processor = load_image_processor(folder)
        side, sides = int(config.get("patch_size", 30)), self._processor.patch_size
        check_squares((sides["height"], sides["width"]), side, "patches", "model")
        self._side = side
        self._token, self._newline = _image_token(config), _find(folder, _NEWLINE)

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        made = run(self._processor, content)
        image = np.asarray(made["images"][0][0])
        filled = (made["image_unpadded_heights"][0][0], made["image_unpadded_widths"][0][0])
        rows, columns = (
            min(whole // self._side, math.ceil(int(size) / self._side))
            for whole, size in zip(image.shape[1:], filled, strict=True)
        )
        patches = self._processor.patchify_image(image[:, : rows * self._side, : columns * self._side])
        inputs = {
            "pixel_values": pack(np.asarray(patches, np.float32)),
            "rows": pack(np.array([rows], np.int64)),
            "newline": pack(np.array([self._newline], np.int64)),
        }
        tokens = (*(self._token,) * columns, self._newline) * rows
        return Processed(inputs, tokens, 0, len(tokens))


def _image_token(config: Mapping[str, Any]) -> int:
    return int(config.get("image_token_id", 71011))


def _find(folder: Path, token: str) -> int:
    """The id of a token that the family needs. Raises ``CheckpointError`` where the tokenizer has none."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json, which says what {token} is")
    found: int | None = Tokenizer.from_file(str(check_regular(file))).token_to_id(token)
    if found is None:
        raise CheckpointError(f"{file} has no token {token}, with which this family lays out prompts")
    return found
