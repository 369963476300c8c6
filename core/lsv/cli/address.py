"""The address of a running server, one option for all commands that talk to one."""

from __future__ import annotations

from urllib.parse import urlsplit

from lsv.settings import Setting
from lsv_base.errors import ConfigError

API = Setting(
    name="api",
    aliases=("url", "base_url"),
    default="http://localhost:8000",
    help="address of the server, with or without http:// and /v1",
    scope="all",
)


def server_address(given: str) -> str:
    """An address as people type it, as ``http://HOST:PORT`` without ``/v1``. Raises ``ConfigError``."""
    address = given.strip() if "://" in given else f"http://{given.strip()}"
    address = address.rstrip("/").removesuffix("/v1").rstrip("/")
    if not _is_http(address):
        raise ConfigError(
            f"{API.flag} must be an http or https address, such as http://localhost:8000, got {given!r}", param=API.name
        )
    return address


def _is_http(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number
        return False
