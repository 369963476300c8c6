"""Where items are decoded and prepared: in a side process for a server, in the caller's own for offline work."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lsv.config import EngineConfig
from lsv.errors import BadRequest
from lsv.media.options import SAMPLING, Limits
from lsv.media.orders import Cut, Prepare, Prepared, Window
from lsv.media.parts import Encoded
from lsv.media.placing import find_processor
from lsv.media.processor import Clip, Content, Picture, Processor, Sound
from lsv.media.windows import cut_sound
from lsv.plugins.catalog import Catalog
from lsv.request.media import Modality
from lsv.resolve.locate import read_config


class Workshop:
    """The processor of one model and the decoders before it.

    Raises ``ConfigError`` for a model that takes no media, ``PluginError`` for a processor that can't be loaded.
    """

    def __init__(self, config: EngineConfig, catalog: Catalog, limits: Limits) -> None:
        offer = find_processor(config, catalog)
        folder, overlaid = Path(config.model), read_config(Path(config.model), config.overrides)
        self.limits = limits
        self._processor: Processor = catalog.load(offer)(folder, overlaid)
        self._root = _identity(offer.name, folder, overlaid)

    @property
    def rate(self) -> int:
        """Samples a second that sounds are brought to."""
        return self._processor.rate

    def prepare(self, order: Prepare) -> Prepared:
        """Raises ``BadRequest`` for what can't be decoded and what the processor can't take."""
        return self.finish(order.modality, self._decode(order), order.options)

    def cut(self, order: Cut) -> Iterator[Window]:
        """The pieces of a sound, in order. Raises ``BadRequest``."""
        sound = self._decode_sound(_plain(order.item))
        total = len(sound.samples) / sound.rate
        for first, last in cut_sound(sound, order.seconds):
            piece = Sound(sound.samples[first:last], sound.rate)
            prepared = self.finish("audio", piece, order.options)
            yield Window(first / sound.rate, last / sound.rate, total, prepared)

    def finish(self, modality: Modality, content: Content, options: Mapping[str, Any]) -> Prepared:
        """What becomes of content that is decoded already. Raises ``BadRequest``."""
        left = {name: value for name, value in options.items() if modality != "video" or name not in SAMPLING}
        digest = self._root.copy()
        digest.update(msgspec.json.encode([modality, left, *_shape(content)], order="sorted"))
        for array in _arrays(content):
            digest.update(np.ascontiguousarray(array).data)
        return Prepared(modality, digest.digest(), self._processor.prepare(content, left))

    def _decode(self, order: Prepare) -> Content:
        # decoders are large, and most models take one kind of media
        data = _plain(order.item)
        if order.modality == "image":
            from lsv.media.pictures import decode_picture

            return decode_picture(data, self.limits)
        if order.modality == "audio":
            return self._decode_sound(data)
        from lsv.media.clips import decode_clip

        return decode_clip(data, order.options, self.limits)

    def _decode_sound(self, data: bytes) -> Sound:
        from lsv.media.sounds import decode_sound

        return decode_sound(data, self.rate, self.limits)


def _plain(item: Encoded) -> bytes:
    if not item.base64:
        return item.data
    try:
        return base64.b64decode(item.data.translate(None, b" \t\r\n"), validate=True)
    except binascii.Error as cause:
        raise BadRequest(f"the base64 is wrong: {cause}") from None


def _arrays(content: Content) -> tuple[np.ndarray[Any, Any], ...]:
    if isinstance(content, Picture):
        return (content.pixels,)
    return (content.frames, content.times) if isinstance(content, Clip) else (content.samples,)


def _shape(content: Content) -> list[object]:
    """What the bytes alone do not tell: the arrays' shapes, and the rate of a sound."""
    return [[list(array.shape) for array in _arrays(content)], getattr(content, "rate", 0)]


def _identity(processor: str, folder: Path, config: Mapping[str, Any]) -> Any:
    """The digest that all hashes of a model begin with: processor, folder, configuration and the processor's files."""
    digest = hashlib.sha256(msgspec.json.encode([processor, str(folder.resolve()), config], order="sorted"))
    for file in sorted(folder.glob("*processor*.json")):
        digest.update(msgspec.json.encode([file.name, file.read_text(encoding="utf-8")]))
    return digest
