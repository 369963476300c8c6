"""``lsv serve --webui``: the page in its own process, so that drawing it never delays an answer."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from lsv.engine.client import Service
from lsv_base.errors import ConfigError, StartError
from lsv_base.processes.visitors import is_loopback
from lsv_webui.options import PageOptions, require_gradio
from lsv_webui.orphan import WAIT_SECONDS, command, is_held_by_orphan
from lsv_webui.page import check_address

log = logging.getLogger("lsv.webui")

_STOP_SECONDS = 5.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


async def serve(service: Service, settings: Mapping[str, Any]) -> None:
    """The frontend named in the manifest. A page that can't start ends the server; one that exits later does not.

    If an engine dies, and the server with it, the page stays, informs its visitors and waits for the next server.

    Raises ``ConfigError`` for settings that the page can't honour, ``StartError`` if it can't start.
    """
    options = page_options(settings)
    require_gradio()
    page = await asyncio.create_subprocess_exec(
        *command(os.getpid(), options.port),
        stdin=asyncio.subprocess.PIPE,
        process_group=0,  # Ctrl-C is for the server, which lets answers finish first
    )
    try:
        await page.communicate(msgspec.json.encode(options))
        if page.returncode == StartError.exit_code:
            raise StartError("the web page did not start, see above; leave --webui out to serve without it")
        log.error("the web page exited with code %s; the API keeps running without it", page.returncode)
        await asyncio.Event().wait()
    finally:
        if service.dead() is None:
            await _end(page)
        elif page.returncode is None:
            log.warning("the web page will wait %.0f minutes for the server to start again", WAIT_SECONDS / 60)


def check(settings: Mapping[str, Any]) -> None:
    """Raises ``ConfigError`` for settings that the page can't honour, and for an address in use."""
    options = page_options(settings)
    if not is_held_by_orphan(options.port):  # frees the port for the new page
        check_address(options.host, options.port)


def page_options(settings: Mapping[str, Any]) -> PageOptions:
    """The page's options from the server's. Raises ``ConfigError``.

    A page that only this machine can open gets the server's first key; otherwise visitors need their own.
    """
    if settings["ssl_certfile"]:
        raise ConfigError(
            "--webui can't check the certificate of its own server: run lsv webui --api https://NAME:PORT separately",
            param="webui.enabled",
        )
    if settings.get("uds"):
        raise ConfigError("--webui reaches the server at a port: leave --uds out", param="uds")
    if not settings["port"]:
        raise ConfigError("--webui needs to know the server's port: give a --port other than 0", param="port")
    host, keys = settings["webui.host"], settings["api_key"]
    lent = keys[0] if keys and is_loopback(host) else None
    return PageOptions(
        server=_reachable(settings["host"], settings["port"]),
        host=host,
        port=settings["webui.port"],
        api_key=settings["webui.api_key"] or lent,
        allowed_hosts=(*settings["allowed_hosts"], *settings["webui.allowed_hosts"]),
    )


def _reachable(host: str, port: int) -> str:
    """An address at which this machine can reach a server listening there."""
    name = _EVERYWHERE.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


async def _end(page: asyncio.subprocess.Process) -> None:
    if page.returncode is not None:
        return
    page.terminate()
    try:
        await asyncio.wait_for(page.wait(), _STOP_SECONDS)
    except TimeoutError:
        page.kill()
        await page.wait()
