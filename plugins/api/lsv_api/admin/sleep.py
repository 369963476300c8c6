"""Routes that have the engines give their memory back, and take it again."""

from __future__ import annotations

from sanic.response import HTTPResponse, empty

from lsv.engine.client import Client
from lsv.engine.orders.sleep import Sleep, WakeUp
from lsv_api.http.context import Exchange
from lsv_api.http.reply import json_response
from lsv_api.records.responses import Sleeping
from lsv_base.errors import BadRequest


async def sleep(exchange: Exchange) -> HTTPResponse:
    """``level`` 1 or 2, and ``mode`` abort or wait; answers when all engines sleep."""
    await exchange.no_body()
    given = exchange.request.args
    level = given.get("level", "1")
    if not level.isdecimal() or len(level) > 1:
        raise BadRequest(f"level must be 1 or 2, got {level[:20]!r}", param="level")
    for client in clients(exchange):
        await client.order(Sleep(int(level), given.get("mode", "abort")))
    return empty(200)


async def wake_up(exchange: Exchange) -> HTTPResponse:
    """``tags``, each a part of its own, or all of them; answers when the engines can be used."""
    await exchange.no_body()
    tags = tuple(tag for given in exchange.request.args.getlist("tags", []) for tag in given.split(",") if tag)
    for client in clients(exchange):
        await client.order(WakeUp(tags))
    return empty(200)


async def show_sleeping(exchange: Exchange) -> HTTPResponse:
    asleep = any(client.status.state == "sleeping" for client in clients(exchange))
    return json_response(Sleeping(is_sleeping=asleep))


def clients(exchange: Exchange) -> tuple[Client, ...]:
    """Those of all engines, each once."""
    return tuple(dict.fromkeys(exchange.api.service.clients.values()))
