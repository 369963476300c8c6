"""What the page's process is told: where to listen, and which server to use."""

from __future__ import annotations

import importlib.util

import msgspec

from lsv.settings import Setting
from lsv_base.errors import ConfigError

SETTINGS = (
    Setting(
        name="webui.host",
        default="127.0.0.1",
        help="address the web page listens on; 0.0.0.0 means every interface",
        scope="serve",
    ),
    Setting(
        name="webui.port",
        type="int",
        default=7860,
        low=1,
        high=65535,
        help="port the web page listens on",
        scope="serve",
    ),
    Setting(
        name="webui.api_key",
        help="server key that the page uses for everybody who can open it",
        scope="serve",
    ),
    Setting(
        name="webui.allowed_hosts",
        type="list",
        default=(),
        help="names the web page may be called by, such as *.example.com, * for any (default: any; only localhost on a "
        "loopback address)",
        scope="serve",
    ),
)
"""The settings that ``lsv serve --webui`` and ``lsv webui`` share."""


class PageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``server`` is the API's address without ``/v1``; ``api_key`` is used for visitors without their own key.
    ``allowed_hosts`` are names that the page may be called by.
    """

    server: str
    host: str = "127.0.0.1"
    port: int = 7860
    api_key: str | None = None
    allowed_hosts: tuple[str, ...] = ()


def require_gradio() -> None:
    """Raises ``ConfigError`` if gradio is missing. Imports nothing."""
    if importlib.util.find_spec("gradio") is None:
        raise ConfigError(
            'the web page needs gradio, which is not installed: pip install -e ".[webui]" in a clone of lsv'
        )
