"""What a media worker is told and what it replies: msgspec records in frames on a socket pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lsv.config import EngineConfig
from lsv.media.items import AudioChunk, Encoded, Prepared
from lsv.media.options import Limits
from lsv.request.media import Modality


class Init(msgspec.Struct, frozen=True, tag=True):
    """The first command: the model whose media are prepared, and what an item may measure."""

    config: EngineConfig
    limits: Limits


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Decode an item and have the model's processor make the encoder's inputs of it."""

    modality: Modality
    item: Encoded
    options: Mapping[str, Any] = {}


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Determine the decoded size of an item from its headers."""

    modality: Modality
    item: Encoded
    options: Mapping[str, Any] = {}


class Measured(msgspec.Struct, frozen=True, tag=True):
    """Decoded size of an item in bytes, as far as its headers say."""

    size: int


class SplitAudio(msgspec.Struct, frozen=True, tag=True):
    """Decode audio and prepare it in chunks of at most ``seconds``, each sent as soon as it is ready."""

    item: Encoded
    seconds: float
    options: Mapping[str, Any] = {}


Command = Init | Measure | Prepare | SplitAudio
Reply = Measured | Prepared | AudioChunk
