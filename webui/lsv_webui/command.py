"""``lsv webui --api URL``: the page alone, in front of a running server."""

from __future__ import annotations

from lsv.cli.address import API, server_address
from lsv.cli.context import CommandContext
from lsv_base.processes.outlet import unblock_output
from lsv_webui.options import SETTINGS, PageOptions, require_gradio


def run(arguments: list[str], context: CommandContext) -> int:
    """Show the page until a signal stops it."""
    settings = context.settings(arguments, scope="webui", extra=(API, *SETTINGS))
    unblock_output()
    options = PageOptions(
        server=server_address(settings["api"]),
        host=settings["webui.host"],
        port=settings["webui.port"],
        api_key=settings["webui.api_key"],
        allowed_hosts=tuple(settings["webui.allowed_hosts"]),
    )
    require_gradio()
    from lsv_webui.page import show

    show(options)
    return 0
