"""dots.ocr's images: patches at their own resolution, between two tokens, and tokens that stand one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv.media.processor import Processed, Video
from lsv.request.media import Media, Modality, Positions
from lsv_base.errors import BadRequest
from lsv_multimodal.families.qwen2_vl import Qwen2VLProcessor, token_of

_IMAGE = 151665


class DotsOCRPlacement:
    """One token of the prompt for every image. Its clients write it, and the tokens around it, into the text of a
    message; where they don't, a template of texts alone is given the same.
    """

    marks: Mapping[Modality, str] = {"image": "<|img|><|imgpad|><|endofimg|>"}
    frames = False
    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": token_of(config, "image", _IMAGE)}

    def spell(self, text: str) -> str:
        """Marks are made of tokens."""
        return text

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class DotsOCRProcessor(Qwen2VLProcessor):
    _options = ("min_pixels", "max_pixels")

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, {"image_token_id": _IMAGE, **config})

    def _process_video(self, video: Video, options: Mapping[str, Any]) -> Processed:
        raise BadRequest("this model takes images, no audio and no video")
