"""How lsv-demo takes images, sounds and video clips, and how many tokens of the prompt stand for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lsv.media.processor import Content, Processed
from lsv.request.media import Array, Media, Modality, Positions
from lsv_base.errors import BadRequest
from lsv_demo.senses.inputs import RATE, cut


class DemoPlacement:
    """One placeholder token for each item; positions are consecutive."""

    placeholders: Mapping[Modality, int]

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.placeholders = config["senses"]["tokens"]

    def positions(self, ids: Sequence[int], media: Sequence[Media]) -> Positions | None:
        return None


class DemoProcessor:
    """An image or a clip becomes 9 embeddings, a sound one for every 320 ms."""

    rate = RATE

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._tokens: Mapping[Modality, int] = config["senses"]["tokens"]

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        if options:
            raise BadRequest(
                f"lsv-demo's processor has no option {', '.join(sorted(options))}: it takes none",
                param="mm_processor_kwargs",
            )
        kind, shown, count = cut(content)
        packed = Array(str(shown.dtype), shown.shape, np.ascontiguousarray(shown).tobytes())
        return Processed({kind: packed}, (self._tokens[kind],) * count, 0, count)
