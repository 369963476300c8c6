from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lsv.media.processor import Content, Image, Processed, Video
from lsv.request.media import Array
from lsv_base.errors import BadRequest
from mini_media.placement import AUDIO, IMAGE, VIDEO


class Mini:
    rate = 8000

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self.prepared = 0

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        unknown = options.keys() - {"sleep", "crash", "fail", "shift"}
        if unknown:
            raise BadRequest(f"mm_processor_kwargs: unknown {sorted(unknown)}", param="mm_processor_kwargs")
        if options.get("crash"):
            os.abort()
        if options.get("fail"):
            raise RuntimeError(f"an accident in {self!r}")
        time.sleep(options.get("sleep", 0))
        self.prepared += 1
        values, token = measured(content)
        ids = (values + options.get("shift", 0)).astype(np.int64)
        # <pad> on both sides of the embeddings
        tokens = (258, *[token] * len(ids), 258)
        return Processed({"ids": Array("int64", ids.shape, ids.tobytes())}, tokens, 1, len(ids))


def measured(content: Content) -> tuple[Any, int]:
    if isinstance(content, Image):
        return content.pixels.reshape(-1, 3).mean(0).round(), IMAGE
    if isinstance(content, Video):
        return content.frames[..., 0].reshape(len(content.frames), -1).mean(1).round(), VIDEO
    second = content.samples[: len(content.samples) // 8000 * 8000].reshape(-1, 8000)
    return (np.abs(second).max(1) * 100).round(), AUDIO
