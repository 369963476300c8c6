"""The page as a process: ``python -m lsv_webui.page PARENT PORT`` reads its options from standard input and shows it.

The port is in the command line only so that the next server's page can find this page (``orphan``).
"""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lsv.settings import export
from lsv_base.errors import ConfigError, LsvError
from lsv_base.processes.folder import PrivateFolder
from lsv_base.processes.lifeline import end_without_search
from lsv_base.processes.outlet import unblock_output
from lsv_base.processes.output import print_line
from lsv_webui.gate import Gate
from lsv_webui.options import PageOptions
from lsv_webui.orphan import outlive, replace_orphans

if TYPE_CHECKING:
    import gradio as gr

MAX_FILE_SIZE = "45mb"
"""As base64 it stays below the 64 MiB that a server accepts by default."""


def show(options: PageOptions, parent: int | None = None) -> None:
    """Serve the page until SIGINT or SIGTERM. Raises ``ConfigError`` when the address can't be used.

    The page outlives its ``parent``, but only for a limited time without a server.
    """
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    replace_orphans(options.port)
    with PrivateFolder() as uploads:
        export({"GRADIO_TEMP_DIR": str(uploads.path)})
        page = launch(options, uploads.path)
        # Other programs wait for this line: on standard output, whatever the log level.
        print_line(f"lsv's web page is on {address(options.host, options.port)}")
        if parent is None:
            stopped.wait()
        else:
            outlive(parent, options.server, stopped)
        page.close(verbose=False)


def launch(options: PageOptions, uploads: Path | None = None) -> gr.Blocks:
    """Serve the page from its own threads; ``uploads`` is the folder of uploaded files.

    Raises ``ConfigError`` when the address can't be used.
    """
    check_address(options.host, options.port)
    quieten()
    from starlette.middleware import Middleware

    from lsv_webui.api import Api
    from lsv_webui.app import build
    from lsv_webui.theme import HEAD, theme

    api = Api(options.server, options.api_key)

    @asynccontextmanager
    async def close_api(_: object) -> AsyncIterator[None]:
        yield
        await api.close()

    page = build(api)
    page.queue(default_concurrency_limit=None)
    page.launch(
        server_name=options.host,
        server_port=options.port,
        theme=theme(),
        head=HEAD,
        share=False,
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
        quiet=True,
        inbrowser=False,
        prevent_thread_lock=True,
        footer_links=[],
        max_file_size=MAX_FILE_SIZE,
        app_kwargs={"lifespan": close_api, "middleware": [Middleware(Gate, options=options, uploads=uploads)]},
    )
    return page


def quieten() -> None:
    """Before importing Gradio: switch off its analytics, version checks and shared pages."""
    export({"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}, replace=True)
    for name in ("httpx", "httpx2", "httpcore", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)


def check_address(host: str, port: int) -> None:
    """Raises ``ConfigError`` when nothing can listen there."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # Python adds the address, which is in the message already
        raise ConfigError(
            f"the web page can't listen on {host}:{port}: {why}; choose another --webui-host or --webui-port",
            param="webui.port",
        ) from None


def address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def main() -> int:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    end_without_search()
    unblock_output()
    try:
        show(msgspec.json.decode(sys.stdin.buffer.read(), type=PageOptions), parent=int(sys.argv[1]))
    except LsvError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
