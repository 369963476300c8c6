"""The hook this plugin adds: a chance to change the web application before it serves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pluggy

from lsv_api.contract import ContractOffer

if TYPE_CHECKING:
    from sanic import Sanic

    from lsv.engine.client import Client

spec = pluggy.HookspecMarker("lsv")


@spec
def lsv_routes() -> Iterable[ContractOffer]:
    """Contracts: routes with their records, in a folder of their own."""


@spec
def lsv_api_app_created(app: Sanic[Any, Any], client: Client) -> None:
    """The application has its routes and does not listen yet: add routes, middleware or listeners.

    ``client`` is the client of the default model. Routes added here are behind the API key like all others.
    """
