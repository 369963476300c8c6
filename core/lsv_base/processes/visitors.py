"""Checks of ``Host`` and ``Origin``, which keep web pages of other sites away from a server without a key.

A browser runs foreign pages on the machine that such a server trusts. A page may send the server any request that
needs no preflight ("simple requests" of the Fetch standard). It may even read the answers if its own host name
suddenly resolves to this machine (DNS rebinding). Browsers send the page (``Origin``) and the name used (``Host``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from lsv_base.errors import BadRequest, LsvError

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_SIMPLE = frozenset({"", "application/x-www-form-urlencoded", "multipart/form-data"})
"""Content types that a page sends without a preflight, except ``text/plain``, which is always refused."""
_SEND_JSON = "send JSON with Content-Type application/json"


class HostRefused(LsvError):
    """The ``Host`` of the request is not a name of this server."""

    code = "host_not_allowed"
    status = 403


class OriginRefused(LsvError):
    """The request comes from a web page that may not use the server."""

    code = "origin_not_allowed"
    status = 403


class UnsupportedMediaType(BadRequest):
    """The content type of the body is not supported."""

    code = "unsupported_media_type"
    status = 415


class Visitors:
    """Checks the headers of requests before anything else."""

    def __init__(
        self,
        address: str,
        *,
        keyless: bool = True,
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
        name_it: str = "name it with --allowed-hosts",
        name_them: str = "name them with --allowed-origins",
    ) -> None:
        """``address`` is where the server listens, ``hosts`` are its further names, and ``origins`` are pages that may
        use it. Errors give advice about an unknown name (``name_it``) and about other pages (``name_them``).
        """
        self._hosts = frozenset(name.lower() for name in hosts)
        self._origins = frozenset(origins)
        self._keyless = keyless
        self._name_it, self._name_them = name_it, name_them
        trusted = keyless and is_loopback(address)
        self._named = (trusted or bool(self._hosts)) and "*" not in self._hosts

    def check(self, method: str, headers: Mapping[str, str]) -> None:
        """Check a request by its headers, whose names are in lower case.

        Raises ``HostRefused``, ``OriginRefused`` or ``UnsupportedMediaType``.
        """
        host = headers.get("host", "").lower()
        if self._named and not self._knows(host_name(host)):
            raise HostRefused(f"This server is not known as {host[:64]!r}; call it localhost, or {self._name_it}")
        if self._keyless and method not in _READING:
            self._check_page(headers, host)

    def _knows(self, name: str) -> bool:
        """Whether a name is in ``hosts``, in full or as ``*.example.com``. Browsers never omit the name; others may."""
        endings = [name[place:] for place, letter in enumerate(name) if letter == "."]
        return not name or is_loopback(name) or name in self._hosts or any(f"*{end}" in self._hosts for end in endings)

    def _check_page(self, headers: Mapping[str, str], host: str) -> None:
        """Refuse requests that pages of other sites can send without a preflight. Only browsers send ``Origin``."""
        origin = headers.get("origin")
        own = origin is None or urlsplit(origin).netloc.lower() == host
        if not own and not self._origins & {origin, "*"}:
            raise OriginRefused(f"Pages of {str(origin)[:64]!r} may not use this server; {self._name_them}")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/plain":
            raise UnsupportedMediaType(f"The body is text/plain; {_SEND_JSON}")
        if origin is None and kind in _SIMPLE and _is_browser(headers):
            raise OriginRefused(f"A browser sent this request without Origin, so its page is unknown; {_SEND_JSON}")


def _is_browser(headers: Mapping[str, str]) -> bool:
    """Whether a web browser sent the request. A page can't change these headers without a preflight."""
    return "sec-fetch-site" in headers or headers.get("user-agent", "").startswith("Mozilla/")


def host_name(host: str) -> str:
    """The name in a ``Host`` header, without its port and the brackets of an IPv6 address."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".")


def is_loopback(name: str) -> bool:
    """Whether browsers resolve a name or address to this machine without DNS."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
