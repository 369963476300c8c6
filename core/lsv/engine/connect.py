"""The client of an engine that a supervisor keeps running, with all that a frontend expects of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsv.config import EngineConfig
from lsv.engine.socket_client import SocketClient
from lsv.media.options import MediaOptions
from lsv.media.service import open_service
from lsv.plugins import Plugins
from lsv.text.tokenizer import Tokenizer


def open_client(
    config: EngineConfig, address: Path, settings: Mapping[str, Any], plugins: Plugins, *, serves: bool = True
) -> SocketClient:
    """A client of the engine at ``address``, to be started. One that ``serves`` no requests prepares no media.

    Raises ``ConfigError``, and ``CheckpointError`` for a tokenizer that can't be read.
    """
    media = open_service(config, plugins.catalog, MediaOptions.from_settings(settings)) if serves else None
    tokenizer = Tokenizer.of(config)
    return SocketClient(config, address, tokenizer, media=media, plugins=plugins)
