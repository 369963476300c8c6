"""Targets: pictures, sounds and clips, through the process that decodes them."""

from __future__ import annotations

import atexit
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image as PilImage

from demo_training.senses.clips import clip
from demo_training.senses.held_out import as_file
from demo_training.senses.pictures import KNOWN, picture
from demo_training.senses.sounds import sound
from lsv import plugins
from lsv.errors import RequestFailed
from lsv.media.items import Encoded
from lsv.media.options import Limits
from lsv.request.media import Modality
from lsv.resolve import resolve
from lsv.settings import Declared, gather, options
from lsv_multimodal.worker.messages import Init, Prepare
from lsv_multimodal.worker.process import WorkerProcess
from trials.fuzz.mutate import mutate_bytes
from trials.fuzz.target import Read, Target

_SECONDS = 10.0
_IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")


class DecoderFault(Exception):
    """An error the decoder did not expect: the client is told that the server failed."""


def _reader(modality: Modality) -> Callable[[Path], Read]:
    def reader(folder: Path) -> Read:
        found = plugins.load(["core", "cpu", "models", "demo", "multimodal"])
        config = resolve(gather(Declared(options.for_scope("engine", found.settings())), {}), found)
        process = WorkerProcess(Init(config, Limits(pixels=16_000_000, seconds=120.0, frames=64)))
        atexit.register(process.end)

        def read(data: bytes) -> None:
            if not process.running:
                process.start()
            try:
                process.prepare(Prepare(modality, Encoded(data)), _SECONDS)
            except RequestFailed as error:
                raise DecoderFault(error.message) from error

        return read

    return reader


def _images() -> Sequence[bytes]:
    shown = picture(Random(1), 64, 48, KNOWN)
    pixels = PilImage.fromarray(np.asarray(shown.content.pixels))
    return [
        as_file(shown)[1],
        *(_saved(pixels, form) for form in _IMAGE_FORMATS[1:]),
        _saved(pixels.convert("P"), "PNG"),
    ]


def _saved(image: PilImage.Image, form: str) -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def _sounds() -> Sequence[bytes]:
    return [as_file(sound(Random(1), rate))[1][:40_000] for rate in (16_000, 44_100)]


def _clips() -> Sequence[bytes]:
    return [as_file(clip(Random(1), 64, 6, 1.0))[1]]


MEDIA = (
    Target("image", _images, mutate_bytes, _reader("image"), memory=False),
    Target("audio", _sounds, mutate_bytes, _reader("audio"), memory=False),
    Target("video", _clips, mutate_bytes, _reader("video"), memory=False),
)
