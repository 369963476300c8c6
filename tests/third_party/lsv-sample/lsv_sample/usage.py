"""Keeps accounts: the tokens of each model, and the engines that came and went."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from lsv.config import EngineConfig
from lsv.request.outputs import RequestRecord

log = logging.getLogger("lsv.sample")

TOTALS: Counter[str] = Counter()
"""What the requests of this process used."""


def engine_started(config: EngineConfig) -> None:
    log.info("sample: the engine of %s has started", config.served_names[0])


def engine_stopped(config: EngineConfig) -> None:
    log.info("sample: the engine of %s has stopped", config.served_names[0])


def add(record: RequestRecord) -> None:
    TOTALS.update(requests=1, prompt_tokens=record.prompt_tokens, tokens=record.tokens)


def add_route(app: Any) -> None:
    """``GET /usage`` shows the totals."""
    from sanic.response import json

    async def show(request: Any) -> Any:
        return json(dict(TOTALS))

    app.add_route(show, "/usage", name="sample_usage")
