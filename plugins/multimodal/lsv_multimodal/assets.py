"""The pictures, sounds and videos that vLLM's example scripts show: fetched when they are first asked for, and kept."""

from __future__ import annotations

import http.client
import os
import re
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from lsv.media.options import Limits
from lsv.settings.caching import cache_root
from lsv_base.errors import BadRequest, RequestFailed
from lsv_multimodal.decoding.audio import decode_audio
from lsv_multimodal.decoding.containers import opened
from lsv_multimodal.decoding.video import decode_video

SOURCE = "https://vllm-public-assets.s3.us-west-2.amazonaws.com"
"""Where vLLM's public assets lie (its vllm/assets/base.py)."""
VIDEOS = "https://huggingface.co/datasets/raushan-testing-hf/videos-test/resolve/main"
"""Where its videos lie (its vllm/assets/video.py)."""
_IMAGES, _SOUNDS = "vision_model_images", "multimodal_asset"
_SECONDS = 30.0
"""How long the source may be silent."""


class ImageAsset(msgspec.Struct, frozen=True):
    """A picture, such as ``cherry_blossom`` or ``stop_sign``."""

    name: str

    @property
    def pil_image(self) -> Image.Image:
        """Raises ``BadRequest`` for no name, ``RequestFailed`` where it can't be fetched."""
        return Image.open(_fetch(f"{SOURCE}/{_IMAGES}", self.name, "jpg"))


class AudioAsset(msgspec.Struct, frozen=True):
    """A sound, such as ``mary_had_lamb`` or ``winning_call``."""

    name: str

    @property
    def url(self) -> str:
        return f"{SOURCE}/{_SOUNDS}/{self.name}.ogg"

    @property
    def audio_and_sample_rate(self) -> tuple[np.ndarray[Any, np.dtype[np.float32]], int]:
        """Its samples, mixed to one channel, and how many there are a second. Raises as ``pil_image`` does."""
        data = _fetch(f"{SOURCE}/{_SOUNDS}", self.name, "ogg").read_bytes()
        with opened(data, "audio") as container:
            rate = container.streams.audio[0].rate
        return decode_audio(data, rate, Limits()).samples, rate


class VideoAsset(msgspec.Struct, frozen=True):
    """A video, such as ``sample_demo_1.mp4``; -1 frames are all of them, up to lsv's limit for a video."""

    name: str
    num_frames: int = -1

    @property
    def np_ndarrays(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Frames, spread evenly: uint8 [frames, height, width, 3], RGB. Raises as ``pil_image`` does."""
        data = _fetch(VIDEOS, self.name.removesuffix(".mp4"), "mp4").read_bytes()
        limits = Limits()
        count = limits.frames if self.num_frames < 0 else self.num_frames
        return decode_video(data, {"num_frames": count}, limits).frames

    @property
    def pil_images(self) -> list[Image.Image]:
        """The same frames as pictures."""
        return [Image.fromarray(frame) for frame in self.np_ndarrays]


def _fetch(source: str, name: str, kind: str) -> Path:
    """The file of an asset in the cache, in a folder that is called like the last part of its ``source``."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise BadRequest(f"an asset's name has letters, digits, - and _, got {name!r:.64}", param="name")
    kept = cache_root() / "lsv" / "assets" / source.split("/")[-1] / f"{name}.{kind}"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        _download(f"{source}/{kept.name}", kept)
    return kept


def _download(url: str, target: Path) -> None:
    """A file that is there is whole: it gets its name when all of it has come."""
    most = Limits().bytes
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            data = answer.read(most + 1)
    except (OSError, http.client.HTTPException) as cause:
        raise RequestFailed(f"{url} can't be fetched: {cause}; put the file at {target}") from None
    if len(data) > most:
        raise RequestFailed(f"{url} has more than {most} bytes: put the right file at {target}")
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part:
        part.write(data)
    os.replace(part.name, target)
