"""Media of ``LLM``'s prompts, prepared in the caller's own process: it is their data, and they are who waits."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image as PilImage

from lsv.config import EngineConfig
from lsv.media.content_parts import Reference, refusal
from lsv.media.families import find_processor, load_placement
from lsv.media.items import Encoded, Prepared
from lsv.media.options import MODALITIES, MediaOptions
from lsv.media.processor import Attended, Content, Image, Marking, Processed, Video, Widened
from lsv.plugins.catalog import Catalog
from lsv.request.media import EMBEDDINGS, Array, Modality
from lsv.request.prompt import Prompt
from lsv.resolve.locate import language_of, read_config
from lsv_base.errors import BadRequest
from lsv_multimodal.decoding.audio import mix_audio
from lsv_multimodal.decoding.frames import DEFAULT_FPS
from lsv_multimodal.decoding.images import check_size, pixels_of
from lsv_multimodal.fetching.sources import Sources
from lsv_multimodal.placement import marks_of, place, spell
from lsv_multimodal.preprocessing import Preprocessor

_WHERE = "multi_modal_data"


class InProcessMedia:
    """See ``lsv.media.service.OfflineMedia``: reads ``multi_modal_data`` of prompts for one model."""

    def __init__(self, config: EngineConfig, catalog: Catalog, options: MediaOptions) -> None:
        offer = find_processor(config, catalog)
        self._modalities = offer.modalities
        self._options = options
        self._placement = load_placement(config, catalog, offer)
        self.marks = marks_of(self._placement)
        self._preprocessor = Preprocessor(config, catalog, options.limits)
        checkpoint = read_config(Path(config.model), config.overrides)
        sizes = language_of(checkpoint)[1] or checkpoint
        width = sizes.get("hidden_size", sizes.get("d_model"))
        self._width = self._placement.width if isinstance(self._placement, Widened) else width

    @property
    def framed(self) -> bool:
        framed = isinstance(self._placement, Marking) and self._placement.frames
        return bool(self._placement.placeholders) and not framed

    def spell(self, text: str) -> str:
        return spell(text, self._placement)

    def place(self, ids: Sequence[int], data: Mapping[str, Any], options: Mapping[str, Any]) -> Prompt:
        items = [(modality, item) for modality in MODALITIES for item in _listed(modality, data.get(modality))]
        for name in data:
            if name not in MODALITIES:
                raise BadRequest(f"{_WHERE}: unknown kind of media {name!r}", param=_WHERE)
        for modality, _ in items:
            if modality not in self._modalities:
                raise refusal(Reference(modality, _WHERE), self._modalities)
        self._options.check_counts([modality for modality, _ in items])
        chosen = {**self._options.processor, **options}
        prepared = [self._prepare(modality, item, chosen) for modality, item in items]
        try:
            return place(ids, prepared, self._placement)
        except KeyError as cause:
            raise BadRequest(f"{_WHERE}: this family needs {cause} in addition to embeddings", param=_WHERE) from None

    def _prepare(self, modality: Modality, item: Any, options: Mapping[str, Any]) -> Prepared:
        if isinstance(item, Mapping) or _is_float(item):
            return self._given(modality, item if isinstance(item, Mapping) else {EMBEDDINGS: item})
        encoded = self._encoded(modality, item)
        if encoded is not None:
            return self._preprocessor.prepare(modality, encoded, options)
        return self._preprocessor.process(modality, self._decoded(modality, item), options)

    def _given(self, modality: Modality, given: Mapping[str, Any]) -> Prepared:
        """An item whose embeddings the caller has made; the placeholder, if there is one, stands for each of them,
        unless they are only attended to."""
        inputs = {name: _numbers(value) for name, value in given.items()}
        rows = np.asarray(inputs.get(EMBEDDINGS, ()), np.float32)
        rows = rows[0] if rows.ndim == 3 and len(rows) == 1 else rows
        if rows.ndim != 2 or not len(rows) or rows.shape[1] != self._width or not np.isfinite(rows).all():
            raise BadRequest(
                f"{_WHERE}: embeddings must be finite numbers [count, {self._width}], got {list(rows.shape)}",
                param=_WHERE,
            )
        packed = {name: _pack(array) for name, array in {**inputs, EMBEDDINGS: rows}.items()}
        placeholder = self._placement.placeholders.get(modality)
        digest = hashlib.sha256(msgspec.msgpack.encode([modality, packed], order="sorted")).digest()
        attended = placeholder is None or isinstance(self._placement, Attended)
        tokens = () if placeholder is None else (placeholder,) * (1 if attended else len(rows))
        return Prepared(modality, digest, Processed(packed, tokens, 0, len(rows), cross=attended))

    def _encoded(self, modality: Modality, item: Any) -> Encoded | None:
        """What has to be decoded; None for what is decoded already."""
        if isinstance(item, Reference):
            return self._fetch(item)
        if isinstance(item, str) and item.partition(":")[0].lower() in ("data", "http", "https", "file"):
            return self._fetch(Reference(modality, _WHERE, url=item))
        if isinstance(item, str | Path):
            try:
                return Encoded(Path(item).expanduser().read_bytes())
            except OSError as cause:
                raise BadRequest(f"{_WHERE}: {item} can't be read: {cause.strerror}", param=_WHERE) from None
        return Encoded(bytes(item)) if isinstance(item, bytes | bytearray | memoryview) else None

    def _fetch(self, reference: Reference) -> Encoded:
        """In a thread of its own: the caller's may have an event loop that runs."""

        async def read() -> Encoded:
            sources = Sources(self._options)
            try:
                return await sources.read(reference)
            finally:
                await sources.close()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, read()).result()

    def _decoded(self, modality: Modality, item: Any) -> Content:
        if modality == "audio":
            samples, rate = _pair(item)
            return mix_audio(samples, int(rate), self._preprocessor.rate, self._preprocessor.limits)
        if modality == "image":
            pixels = pixels_of(item) if isinstance(item, PilImage.Image) else _pixels(item, 3)
            check_size(pixels.shape[1], pixels.shape[0], self._preprocessor.limits)
            return Image(pixels)
        frames, times = item if isinstance(item, tuple) else (item, None)
        shown = _pixels(frames, 4)
        moments = np.arange(len(shown)) / DEFAULT_FPS if times is None else np.asarray(times)
        if moments.shape != (len(shown),):
            raise BadRequest(f"{_WHERE}: a video needs one time for each of its {len(shown)} frames", param=_WHERE)
        return Video(shown, moments.astype(np.float32))


def _listed(modality: Modality, given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, list) else [given]


def _pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, tuple) or len(item) != 2:
        raise BadRequest(f"{_WHERE}: audio is a path, bytes or (samples, rate)", param=_WHERE)
    return item


def _numbers(value: Any) -> np.ndarray[Any, Any]:
    """An array, or a tensor of any device, as an array here; floats as float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
    array = np.asarray(value)
    return array.astype(np.float32) if np.issubdtype(array.dtype, np.floating) else array


def _is_float(item: Any) -> bool:
    return (hasattr(item, "detach") and item.is_floating_point()) or (
        isinstance(item, np.ndarray) and np.issubdtype(item.dtype, np.floating)
    )


def _pack(array: np.ndarray[Any, Any]) -> Array:
    return Array(str(array.dtype), array.shape, np.ascontiguousarray(array).tobytes())


def _pixels(item: Any, axes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An array of pixels, its last axis red, green and blue."""
    array = np.asarray(item)
    if array.dtype != np.uint8 or array.ndim != axes or array.shape[-1] != 3 or not array.size:
        raise BadRequest(
            f"{_WHERE}: decoded images are uint8 arrays with {axes} axes, the last one of 3 colours, "
            f"got {array.dtype} {list(array.shape)}",
            param=_WHERE,
        )
    return array
