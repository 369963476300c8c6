"""Decoding and processing of items: in media workers for a server, in the caller's own process for ``LLM``."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lsv.config import EngineConfig
from lsv.media.families import find_processor, load_processor
from lsv.media.items import AudioChunk, Encoded, Prepared
from lsv.media.options import Limits, check_decoded
from lsv.media.processor import SOUND, Audio, Content, Image, Resizing, Video
from lsv.plugins.catalog import Catalog
from lsv.request.media import Modality
from lsv.resolve.locate import read_config
from lsv_base.errors import BadRequest
from lsv_base.untrusted.files import read_text
from lsv_multimodal.chunking import split_audio
from lsv_multimodal.decoding.frames import SAMPLING


class Preprocessor:
    """The decoders, and behind them the processor of one model.

    Raises ``ConfigError`` for a model that takes no media, ``PluginError`` for a processor that can't be loaded.
    """

    def __init__(self, config: EngineConfig, catalog: Catalog, limits: Limits) -> None:
        offer, folder = find_processor(config, catalog), Path(config.model)
        self.limits = limits
        self._modalities = offer.modalities
        self._processor = load_processor(config, catalog, offer)
        self._root = _identity(offer.name, folder, read_config(folder, config.overrides))

    @property
    def rate(self) -> int:
        """Samples a second that audio is resampled to."""
        return self._processor.rate

    def load_decoders(self) -> None:
        """Import now what decodes the model's media: a confined process may not be able to, later."""
        for modality in self._modalities:
            _decoder(modality)

    def prepare(self, modality: Modality, item: Encoded, options: Mapping[str, Any]) -> Prepared:
        """Raises ``BadRequest`` for what can't be decoded and what the processor can't take."""
        return self.process(modality, self._decode(modality, item, options), options)

    def measure(self, modality: Modality, item: Encoded, options: Mapping[str, Any]) -> int:
        """Decoded size of an item in bytes, as far as its headers say, without decoding it.

        Raises ``BadRequest`` if it can't be read or is over a limit.
        """
        data = _plain(item)
        if modality == "image":
            return int(_decoder("image").measure_image(data, self.limits, self._resized))
        if modality == "audio":
            return int(_decoder("audio").measure_audio(data, self.rate, self.limits))
        heard = bool(self.rate and options.get(SOUND))
        sound = _decoder("audio").measure_audio(data, self.rate, self.limits) if heard else 0
        return int(_decoder("video").measure_video(data, options, self.limits) + sound)

    def split_audio(self, item: Encoded, seconds: float, options: Mapping[str, Any]) -> Iterator[AudioChunk]:
        """The chunks of a long item, in order, each of at most ``seconds``. Raises ``BadRequest``."""
        audio = self._decode_audio(_plain(item))
        total = len(audio.samples) / audio.rate
        for first, last in split_audio(audio, seconds):
            prepared = self.process("audio", Audio(audio.samples[first:last], audio.rate), options)
            yield AudioChunk(first / audio.rate, last / audio.rate, total, prepared)

    def process(self, modality: Modality, content: Content, options: Mapping[str, Any]) -> Prepared:
        """Content that is decoded already, as the encoder takes it. Raises ``BadRequest``."""
        left = {name: value for name, value in options.items() if modality != "video" or name not in SAMPLING}
        digest = self._root.copy()
        digest.update(msgspec.json.encode([modality, left, *_shape(content)], order="sorted"))
        decoded = 0
        for array in _arrays(content):
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise BadRequest(f"the {modality} has values that are NaN or infinity; send finite values")
            digest.update(np.ascontiguousarray(array).data)
            decoded += array.nbytes
        check_decoded(decoded, self.limits)
        return Prepared(modality, digest.digest(), self._processor.process(content, left), decoded)

    def _decode(self, modality: Modality, item: Encoded, options: Mapping[str, Any]) -> Content:
        data = _plain(item)
        if modality == "image":
            return self._decode_image(data)
        if modality == "audio":
            return self._decode_audio(data)
        return self._decode_video(data, options)

    def _decode_image(self, data: bytes) -> Image:
        image: Image = _decoder("image").decode_image(data, self.limits, self._resized)
        return image

    @property
    def _resized(self) -> Callable[[int, int], tuple[int, int]] | None:
        """The image size of the processor, if it says so."""
        return self._processor.resized if isinstance(self._processor, Resizing) else None

    def _decode_audio(self, data: bytes) -> Audio:
        audio: Audio = _decoder("audio").decode_audio(data, self.rate, self.limits)
        return audio

    def _decode_video(self, data: bytes, options: Mapping[str, Any]) -> Video:
        video: Video = _decoder("video").decode_video(data, options, self.limits)
        if not (self.rate and options.get(SOUND)):
            return video
        return dataclasses.replace(video, sound=_decoder("audio").decode_track(data, self.rate, self.limits))


def _decoder(modality: Modality) -> Any:
    """The module that decodes; a large one, and most models take one kind of media."""
    return import_module(f"lsv_multimodal.decoding.{_DECODERS[modality]}")


_DECODERS: Mapping[Modality, str] = {"image": "images", "audio": "audio", "video": "video"}


def _plain(item: Encoded) -> bytes:
    if not item.base64:
        return item.data
    try:
        return base64.b64decode(item.data.translate(None, b" \t\r\n"), validate=True)
    except binascii.Error as cause:
        raise BadRequest(f"the base64 is wrong: {cause}") from None


def _arrays(content: Content) -> tuple[np.ndarray[Any, Any], ...]:
    if isinstance(content, Image):
        return (content.pixels,)
    if isinstance(content, Audio):
        return (content.samples,)
    sound = () if content.sound is None else (content.sound.samples,)
    return (content.frames, content.times, *sound)


def _shape(content: Content) -> list[object]:
    """What the bytes alone do not tell: the arrays' shapes and types, and the rate of audio."""
    return [[[str(array.dtype), *array.shape] for array in _arrays(content)], getattr(content, "rate", 0)]


def _identity(processor: str, folder: Path, config: Mapping[str, Any]) -> Any:
    """The digest that all hashes of a model begin with: processor, folder, configuration and the processor's files."""
    digest = hashlib.sha256(msgspec.json.encode([processor, str(folder.resolve()), config], order="sorted"))
    for file in sorted(folder.glob("*processor*.json")):
        digest.update(msgspec.json.encode([file.name, read_text(file)]))
    return digest
