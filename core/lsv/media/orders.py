"""What is asked of a side process and what it answers: msgspec records in frames on a socket pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lsv.config import EngineConfig
from lsv.errors import ErrorRecord
from lsv.media.options import Limits
from lsv.media.parts import Encoded
from lsv.media.processor import Processed
from lsv.request.media import Modality


class Equip(msgspec.Struct, frozen=True, tag=True):
    """The first order: the model whose media are prepared, and what an item may measure."""

    config: EngineConfig
    limits: Limits


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Decode an item and have the processor make the encoder's inputs of it, as ``options`` say."""

    modality: Modality
    item: Encoded
    options: Mapping[str, Any] = {}


class Cut(msgspec.Struct, frozen=True, tag=True):
    """Decode a sound and prepare it in pieces of at most ``seconds``, each as soon as it is ready."""

    item: Encoded
    seconds: float
    options: Mapping[str, Any] = {}


class Equipped(msgspec.Struct, frozen=True, tag=True):
    """The processor is loaded."""


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """An item as the encoder takes it; ``hash`` names its content, its preparation and the model."""

    modality: Modality
    hash: bytes
    processed: Processed


class Window(msgspec.Struct, frozen=True, tag=True):
    """A piece of a sound: what is heard from ``start`` to ``stop``, in seconds, of ``total``."""

    start: float
    stop: float
    total: float
    item: Prepared

    @property
    def last(self) -> bool:
        return self.stop == self.total


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Nothing came of the order; the next one is welcome, except after ``Equip``."""

    error: ErrorRecord


Order = Equip | Prepare | Cut
Answer = Equipped | Prepared | Window | Refused
