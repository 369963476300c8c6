"""Whose requests a listener without a key takes: by the name it was called by, and by the page that calls it.

A browser runs pages of strangers on the machine that such a server trusts. A page may send it what needs no preflight
("simple requests" of the Fetch standard), and may read what it answers where the page's own name suddenly leads to this
machine (DNS rebinding). Browsers say which page it is (``Origin``) and which name it used (``Host``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from lsv.errors import BadRequest, LsvError

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_SIMPLE = frozenset({"", "application/x-www-form-urlencoded", "multipart/form-data"})
"""Kinds of bodies that a page sends without a preflight; ``text/plain`` is never taken."""


class HostRefused(LsvError):
    """The request calls the server by a name that is not its own."""

    code = "host_not_allowed"
    status = 403


class OriginRefused(LsvError):
    """The request comes from a web page that may not use the server."""

    code = "origin_not_allowed"
    status = 403


class UnsupportedMediaType(BadRequest):
    """A body of a kind that is not taken."""

    code = "unsupported_media_type"
    status = 415


class Visitors:
    """Checks requests before anything else is done for them."""

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
        """``address`` is where the server listens, ``hosts`` are further names of it, and ``origins`` are pages that
        may use it. Errors say what to do about a strange name (``name_it``) and about other pages (``name_them``).
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
        """Names match in full, or as ``*.example.com``. Only what is no browser leaves the name out."""
        endings = [name[place:] for place, letter in enumerate(name) if letter == "."]
        return not name or is_loopback(name) or name in self._hosts or any(f"*{end}" in self._hosts for end in endings)

    def _check_page(self, headers: Mapping[str, str], host: str) -> None:
        """Refuse what pages of other sites can send without asking. Other clients have no ``Origin``."""
        origin = headers.get("origin")
        own = origin is None or urlsplit(origin).netloc.lower() == host
        if not own and not self._origins & {origin, "*"}:
            raise OriginRefused(f"Pages of {str(origin)[:64]!r} may not use this server; {self._name_them}")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/plain":
            raise UnsupportedMediaType("A body of text/plain is not taken: send JSON as application/json")
        if origin is None and kind in _SIMPLE and _is_browser(headers):
            raise OriginRefused("The browser does not say which page sends this: send JSON as application/json")


def _is_browser(headers: Mapping[str, str]) -> bool:
    """Whether a web browser sends a request. A page can change neither header without a preflight."""
    return "sec-fetch-site" in headers or headers.get("user-agent", "").startswith("Mozilla/")


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
