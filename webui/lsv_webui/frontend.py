"""``lsv serve --webui``: the page in a process of its own, so that drawing it never delays an answer."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from lsv.engine.client import Service
from lsv.errors import ConfigError, StartError
from lsv_webui.options import PageOptions, is_local, require_gradio

log = logging.getLogger("lsv.webui")

_STOP_SECONDS = 5.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


async def serve(service: Service, settings: Mapping[str, Any]) -> None:
    """The frontend named in the manifest. A page that can't start ends the server; one that ends later does not.

    Raises ``ConfigError`` for settings the page can't follow, ``StartError`` when it could not start.
    """
    options = page_options(settings)
    require_gradio()
    page = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "lsv_webui.page",
        str(os.getpid()),
        stdin=asyncio.subprocess.PIPE,
        process_group=0,  # a Ctrl-C is for the server, which lets answers end first
    )
    try:
        await page.communicate(msgspec.json.encode(options))
        if page.returncode == StartError.exit_code:
            raise StartError("the web page did not start, see above; leave --webui out to serve without it")
        log.error("the web page ended with exit code %s; the API goes on without it", page.returncode)
        await asyncio.Event().wait()
    finally:
        await _end(page)


def page_options(settings: Mapping[str, Any]) -> PageOptions:
    """The page's options from the server's. Raises ``ConfigError``.

    The server's first key is lent to a page that only this machine can open; others who open it need their own.
    """
    if settings["ssl_certfile"]:
        raise ConfigError(
            "--webui can't check the certificate of its own server: run lsv webui --api https://NAME:PORT beside it",
            param="webui.enabled",
        )
    if not settings["port"]:
        raise ConfigError("--webui needs to know the server's port: give a --port other than 0", param="port")
    host, keys = settings["webui.host"], settings["api_key"]
    lent = keys[0] if keys and is_local(host) else None
    return PageOptions(
        server=_reachable(settings["host"], settings["port"]),
        host=host,
        port=settings["webui.port"],
        api_key=settings["webui.api_key"] or lent,
    )


def _reachable(host: str, port: int) -> str:
    """An address under which this machine reaches what listens there."""
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
