"""The client of an engine that a supervisor keeps running, with all that a frontend expects of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv.config import EngineConfig
from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.socket_client import SocketClient
from lsv.media.options import MediaOptions
from lsv.media.service import open_service
from lsv.plugins import Plugins
from lsv.text.tokenizer import open_tokenizer

EngineClient = SocketClient | ReplicaSet
"""What talks to an engine in another process, or to several that run the same."""


def open_client(
    config: EngineConfig,
    addresses: Sequence[Path],
    settings: Mapping[str, Any],
    plugins: Plugins,
    *,
    serves: bool = True,
) -> EngineClient:
    """A client of the engines at ``addresses``, one for each replica, to be started. One that ``serves`` no requests
    prepares no media.

    Raises ``ConfigError``, and ``CheckpointError`` for a tokenizer that can't be read.
    """
    media = open_service(config, plugins.catalog, MediaOptions.from_settings(settings)) if serves else None
    tokenizer = open_tokenizer(config, skip=settings["skip_tokenizer_init"])
    if len(addresses) == 1:
        return SocketClient(config, addresses[0], tokenizer, media=media, plugins=plugins)
    each = zip(config.replicas(), addresses, strict=True)
    clients = [SocketClient(one, address, tokenizer, plugins=plugins) for one, address in each]
    return ReplicaSet(clients, media=media)
