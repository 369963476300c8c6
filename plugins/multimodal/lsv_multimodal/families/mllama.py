"""Llama 3.2's images: up to so many tiles, to which the tokens behind the placeholder attend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lsv.media.processor import Content, Processed
from lsv.request.media import Media, Modality, Positions
from lsv_base.errors import CheckpointError
from lsv_multimodal.families.image_processor import check_options, load_image_processor, pack, run


class MllamaPlacement:
    """A token of the prompt for an image, which stays one: its embeddings have no places there."""

    placeholders: Mapping[Modality, int]
    attended = True

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": _image_token(config)}

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class MllamaProcessor:
    """The image in the tiles whose layout fits it best, and the number of that layout."""

    rate = 0

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._processor = load_image_processor(folder)
        vision = config["vision_config"]
        size, most = int(vision.get("image_size", 448)), int(vision.get("max_num_tiles", 4))
        made = (self._processor.size["height"], self._processor.size["width"], self._processor.max_image_tiles)
        if made != (size, size, most):
            raise CheckpointError(
                f"the image processor makes up to {made[2]} tiles of {made[0]} x {made[1]}, "
                f"the tower takes {most} of {size} x {size}: mend preprocessor_config.json"
            )
        self._tokens = (size // int(vision.get("patch_size", 14))) ** 2 + 1
        self._token = _image_token(config)

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        made = run(self._processor, content)
        tiles = int(np.asarray(made["num_tiles"]).item())
        layout = np.asarray(made["aspect_ratio_ids"], np.int64).reshape(1)
        inputs = {"pixel_values": pack(made["pixel_values"][0, 0, :tiles]), "layout": pack(layout)}
        return Processed(inputs, (self._token,), 0, tiles * self._tokens, cross=True)


def _image_token(config: Mapping[str, Any]) -> int:
    return int(config.get("image_token_index", config.get("image_token_id", 128256)))
