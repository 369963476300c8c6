"""BLIP-2's images: one square each, which stands before the text as so many queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv.media.processor import Content, Processed
from lsv.request.media import Media, Modality, Positions
from lsv_base.errors import CheckpointError
from lsv_multimodal.families.image_processor import check_options, check_squares, load_image_processor, pack, run
from lsv_multimodal.families.leading import text_behind


class Blip2Placement:
    """A prompt is its image, then the text, the token that it begins with included."""

    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": _image_token(config)}

    def complete(self, ids: Sequence[int], items: int) -> Sequence[int]:
        """See ``Completing``: wherever the image's placeholder was, if there was one, it comes first."""
        image = self.placeholders["image"]
        return [image, *text_behind(ids, image, items)]

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class Blip2Processor:
    """The image as one square."""

    rate = 0

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._processor = load_image_processor(folder)
        size, made = int(config["vision_config"].get("image_size", 224)), self._processor.size
        check_squares((made["height"], made["width"]), size)
        self._tokens = (_image_token(config),) * int(config.get("num_query_tokens", 32))

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        pixels = pack(run(self._processor, content)["pixel_values"])
        return Processed({"pixel_values": pixels}, self._tokens, 0, len(self._tokens))


def _image_token(config: Mapping[str, Any]) -> int:
    """Raises ``CheckpointError`` for files that are older than the token."""
    token = config.get("image_token_index", config.get("image_token_id"))
    if not isinstance(token, int):
        raise CheckpointError(f"config.json: image_token_index must be the id of a token, got {token!r:.50}")
    return token
