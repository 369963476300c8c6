"""The frontend named in the manifest: one process that serves, or several."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from lsv.engine.client import Service
from lsv_api.accounts.account import read_accounts
from lsv_api.accounts.quotas import Quotas
from lsv_api.fleet.fleet import Fleet
from lsv_api.http.failures import log
from lsv_api.listening import address_of, listening, tls_context
from lsv_api.messages.signatures import SIGNING_KEY
from lsv_api.options import ApiOptions
from lsv_api.server import first_of, open_server, taking_signals, watch_engines


async def serve(service: Service, settings: Mapping[str, Any]) -> None:
    """Serve until a signal, or until an engine dies.

    Raises ``ConfigError`` when the address can't be used, ``EngineDied`` when an engine is gone and the
    server should not outlive it.
    """
    options = ApiOptions.from_settings(settings)
    if options.prompt_log is not None:
        log.warning("the log shows the prompts of all requests (--enable-log-requests, --max-log-len)")
    settings = {**settings, SIGNING_KEY: settings.get(SIGNING_KEY) or secrets.token_hex(32)}  # one for all processes
    if options.server_count == 1:
        await open_server(service, settings).run()
    else:
        await _serve_by_fleet(service, options, settings)


async def _serve_by_fleet(service: Service, options: ApiOptions, settings: Mapping[str, Any]) -> None:
    """Serve with several processes: this one binds the address, starts them and looks after them."""
    tls_context(options)  # raises what is wrong before anything is started
    quotas = Quotas(read_accounts(options.api_keys, options.accounts))
    with listening(options) as sock, closing(quotas.buckets):
        fleet = Fleet(service, options, settings, sock, quotas.buckets)
        watcher = asyncio.create_task(_announce_fleet(fleet, service, options, address_of(sock, options)))
        try:
            with taking_signals(fleet.stop):
                await first_of(fleet.run(), watcher)
        finally:
            watcher.cancel()
        if watcher.done() and not watcher.cancelled():
            watcher.result()


async def _announce_fleet(fleet: Fleet, service: Service, options: ApiOptions, address: str) -> None:
    await fleet.wait_until_serving()
    log.info("%d processes listen on %s", len(fleet.members), address)
    await watch_engines(service, options, address)
