"""Where the images of a wrapper of transformers stand in a prompt. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lsv.media.processor import Placement
from lsv.request.media import EMBEDDINGS, Media, Modality, Positions
from lsv.resolve.locate import language_of, read_object
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.families.named_tokens import named_tokens
from lsv_multimodal.families.qwen2_vl import Qwen2VLPlacement, read_array

GRID = "image_grid_thw"
"""What processors call the patches of an image in time, height and width."""
_ROWS = ("image_token_id", "image_token_index")
_WRITTEN: Mapping[str, str] = {"aya_vision": "<image>", "llama4": "<|image|>", "qianfan_ocr": "<image>"}
"""What chat templates write for an image, by model_type, where it is not the token that rows replace."""


def find_row_token(config: Mapping[str, Any]) -> int:
    """The token that a wrapper replaces by rows of its tower. Raises ``CheckpointError`` where config.json has none."""
    found = next((config[name] for name in _ROWS if isinstance(config.get(name), int)), None)
    if found is None:
        raise CheckpointError("config.json: image_token_id is missing, the token that stands for an image")
    return int(found)


def find_placeholder(folder: Path, config: Mapping[str, Any]) -> int:
    """The token that stands for an image in a templated prompt."""
    written = (read_object(folder / "processor_config.json") or {}).get("image_token")
    written = written or _WRITTEN.get(str(config.get("model_type")))
    found = named_tokens(folder).get(written) if isinstance(written, str) else None
    return find_row_token(config) if found is None else found


class WrapperPlacement:
    """One token of the prompt for every image; tokens stand one after the other."""

    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": find_placeholder(folder, config)}

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        _refuse_embeddings(media)
        return None


class GridPlacement(Qwen2VLPlacement):
    """The same of families whose rows stand in time, height and width."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = {"image": find_placeholder(folder, config)}
        vision = config.get("vision_config") or {}
        self._merge = int(vision.get("spatial_merge_size") or 2)

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        """One after the other for families whose processors make no grids."""
        _refuse_embeddings(media)
        gridded = [item for item in media if GRID in item.inputs]
        return super().positions(ids, gridded) if gridded else None

    def sizes(self, item: Media) -> list[int]:
        frames, height, width = np.ravel(read_array(item, GRID)).tolist()
        return [frames, height // self._merge, width // self._merge]


def _refuse_embeddings(media: Sequence[Media]) -> None:
    """Embeddings of a caller's lack the tokens around them, and what some families add to rows."""
    if any(EMBEDDINGS in item.inputs for item in media):
        raise BadRequest("this model takes images, and no embeddings instead: its own processor lays them out")


def make_placement(folder: Path, config: Mapping[str, Any]) -> Placement:
    """The one that config.json asks for."""
    return (GridPlacement if stands_by_axes(config) else WrapperPlacement)(folder, config)


def stands_by_axes(config: Mapping[str, Any]) -> bool:
    """Whether rows of an image may stand in time, height and width."""
    text = language_of(config)[1] or config
    rule = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return isinstance(rule, Mapping) and bool(rule.get("mrope_section"))
