"""Targets: pictures, sounds and clips, through the process that decodes them."""

from __future__ import annotations

import asyncio
import atexit
import base64
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
from lsv.config import EngineConfig
from lsv.media.content_parts import Reference
from lsv.media.options import Limits, MediaOptions
from lsv.media.service import MediaService, open_service
from lsv.plugins.catalog import Catalog
from lsv.request.media import Modality
from lsv.resolve import resolve
from lsv.settings import Declared, gather, options
from lsv_base.errors import LsvError
from trials.fuzz.mutate import mutate_bytes
from trials.fuzz.target import Read, Target

_SECONDS = 10.0
_UNEXPECTED = " could not be prepared ("
"""In the message about an item that the decoder broke on."""
_IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")


class DecoderFault(Exception):
    """An error that the decoder did not expect, which names its type instead of what is wrong with the file."""


def _reader(modality: Modality) -> Callable[[Path], Read]:
    """Reads as a server does, by the media service of lsv-demo."""

    def reader(folder: Path) -> Read:
        found = plugins.load(["core", "cpu", "models", "demo", "multimodal"])
        config = resolve(gather(Declared(options.for_scope("engine", found.settings())), {}), found)
        runner = asyncio.Runner()
        atexit.register(runner.close)
        service = runner.run(_open(config, found.catalog))
        atexit.register(lambda: runner.run(service.close()))

        def read(data: bytes) -> None:
            reference = Reference(modality, modality, base64=base64.b64encode(data))
            try:
                runner.run(service.prepare([reference], {}))
            except LsvError as error:
                if _UNEXPECTED in error.message:
                    raise DecoderFault(error.message) from error
                raise

        return read

    return reader


async def _open(config: EngineConfig, catalog: Catalog) -> MediaService:
    limits = Limits(pixels=16_000_000, seconds=120.0, frames=64)
    service = open_service(config, catalog, MediaOptions(prepare_seconds=_SECONDS, limits=limits))
    assert service is not None, "lsv-demo takes media"
    await service.ready()
    return service


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
