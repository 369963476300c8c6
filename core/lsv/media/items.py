"""An item of media on its way from a request to the engine: as it came, and as the encoder takes it."""

from __future__ import annotations

import msgspec

from lsv.media.processor import Processed
from lsv.request.media import Modality


class Encoded(msgspec.Struct, frozen=True):
    """An item as it came: a file's bytes, or their ``base64`` text, which the decoder of the file decodes, too."""

    data: bytes
    base64: bool = False


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """An item that has been read, decoded and processed: what the encoder takes of it."""

    modality: Modality
    hash: bytes
    """32 bytes that name its content, how it was processed, and the model."""
    processed: Processed
    decoded: int = 0
    """Bytes that it had once it was decoded."""


class AudioChunk(msgspec.Struct, frozen=True, tag=True):
    """A chunk of a long audio item: what is heard from ``start`` to ``stop``, in seconds, of ``total``."""

    start: float
    stop: float
    total: float
    item: Prepared

    @property
    def last(self) -> bool:
        return self.stop == self.total
