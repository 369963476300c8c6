"""Routes that have the engines record a profile."""

from __future__ import annotations

from sanic.response import HTTPResponse, empty

from lsv.engine.parts.profiles import StartProfile, StopProfile
from lsv_api.admin.sleep import clients
from lsv_api.http.context import Exchange


async def start_profile(exchange: Exchange) -> HTTPResponse:
    await exchange.no_body()
    for client in clients(exchange):
        await client.order(StartProfile())
    return empty(200)


async def stop_profile(exchange: Exchange) -> HTTPResponse:
    """Answers when the files are written."""
    await exchange.no_body()
    for client in clients(exchange):
        await client.order(StopProfile())
    return empty(200)
