"""Whose requests a server without a key takes: by the name it was called by, and by the page that calls it.

A browser runs pages of strangers on the machine that such a server trusts. A page may send it what needs no preflight
("simple requests" of the Fetch standard), and may read what it answers where the page's own name suddenly leads to this
machine (DNS rebinding). Browsers say which page it is (``Origin``) and which name it used (``Host``).
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from sanic import Request

from lsv_api.http.failures import HostRefused, OriginRefused, UnsupportedMediaType
from lsv_api.options import ApiOptions

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Visitors:
    """Checks requests before anything else is done for them."""

    def __init__(self, options: ApiOptions) -> None:
        self._hosts = frozenset(name.lower() for name in options.allowed_hosts)
        self._origins = frozenset(options.allowed_origins)
        self._keyless = options.keyless
        trusted = self._keyless and is_loopback(options.host)
        self._named = (trusted or bool(self._hosts)) and "*" not in self._hosts

    def check(self, request: Request) -> None:
        """Raises ``HostRefused``, ``OriginRefused`` or ``UnsupportedMediaType``."""
        host: str = request.headers.get("host", "").lower()
        if self._named and not self._knows(host_name(host)):
            raise HostRefused(
                f"This server is not known as {host[:64]!r}; call it localhost, or name it with --allowed-hosts"
            )
        if self._keyless and request.method not in _READING:
            self._check_page(request, host)

    def _knows(self, name: str) -> bool:
        """Names match in full, or as ``*.example.com``. Only what is no browser leaves the name out."""
        endings = [name[place:] for place, letter in enumerate(name) if letter == "."]
        return not name or is_loopback(name) or name in self._hosts or any(f"*{end}" in self._hosts for end in endings)

    def _check_page(self, request: Request, host: str) -> None:
        """Refuse what pages of other sites can send without asking. Other clients have no ``Origin``."""
        origin: str | None = request.headers.get("origin")
        own = origin is None or urlsplit(origin).netloc.lower() == host
        if not own and not self._origins & {origin, "*"}:
            raise OriginRefused(
                f"Pages of {str(origin)[:64]!r} may not use this server; name them with --allowed-origins"
            )
        # the one kind of form whose body can be JSON; browsers that send no Origin with it are still in use
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/plain":
            raise UnsupportedMediaType("A body of text/plain is not taken: send JSON as application/json")


def host_name(host: str) -> str:
    """The name in a ``Host`` header, without its port and the brackets of an IPv6 address."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".")


def is_loopback(name: str) -> bool:
    """Whether a name or address is that of this very machine, for any browser."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
