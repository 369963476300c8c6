"""Media from the network: allowed hosts, checked addresses, few redirects, bounded bytes and time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpcore2
import httpx2

from lsv_base.errors import BadRequest
from lsv_multimodal.fetching.shares import Shares
from lsv_multimodal.fetching.ssrf import DOMAINS, CheckedBackend, Resolve, Resolver

_REDIRECTS = 3
_CONNECTIONS = 64
_PER_HOST = 8
"""Connections to one host: a slow one then does not keep others waiting."""
_MOVED = (301, 302, 303, 307, 308)
_HEADERS = ((b"user-agent", b"lsv"), (b"accept", b"*/*"), (b"accept-encoding", b"identity"))


class Fetcher:
    """Fetches over HTTP(S), GET alone, without cookies, credentials or proxies. One event loop uses it.

    ``domains`` as in ``MediaOptions``; ``limit`` is the most bytes of an item.
    """

    def __init__(
        self,
        domains: Sequence[str],
        limit: int,
        *,
        resolver: Resolve | None = None,
        network: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        self._domains = tuple(domain.strip("[]") for domain in domains)
        self._limit = limit
        self._pool = httpcore2.AsyncConnectionPool(
            network_backend=CheckedBackend(
                network or httpcore2.AnyIOBackend(), resolver or Resolver(), listed=self._domains
            ),
            max_connections=_CONNECTIONS,
            max_keepalive_connections=0,
        )
        self._shares = Shares(_CONNECTIONS, _PER_HOST)

    async def fetch(self, url: str, seconds: float) -> bytes:
        """The bytes behind a URL, all redirects included within ``seconds``. Raises ``BadRequest``."""
        try:
            async with asyncio.timeout(seconds):
                return await self._follow(url)
        except TimeoutError:
            raise BadRequest(f"fetching {_shown(url)} took more than {seconds:g} s") from None
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as cause:
            raise BadRequest(f"{_shown(url)} can't be fetched: {type(cause).__name__}") from None

    async def close(self) -> None:
        await self._pool.aclose()

    async def _follow(self, url: str) -> bytes:
        for _ in range(_REDIRECTS + 1):
            target = self._check(url)
            async with (
                self._shares.place(target.host),
                self._pool.stream("GET", _raw(target), headers=_HEADERS) as response,
            ):
                if response.status not in _MOVED:
                    return await self._read(response, url)
                url = _redirected(target, response)
        raise BadRequest(f"{_shown(url)} has more than {_REDIRECTS} redirects")

    def _check(self, url: str) -> httpx2.URL:
        """The URL, parsed; what was checked is what will be connected to. Raises ``BadRequest``."""
        target = _parse(url)
        host = target.host.rstrip(".")
        if not any(_matches(host, domain) for domain in self._domains):
            raise BadRequest(
                f"media are not fetched from {host}: send them inside the request (data: URL), "
                f"or start with {DOMAINS} {host}"
            )
        return target

    async def _read(self, response: httpcore2.Response, url: str) -> bytes:
        if response.status != 200:
            raise BadRequest(f"{_shown(url)} answered with status {response.status}")
        data = bytearray()
        async for piece in response.aiter_stream():
            data += piece
            if len(data) > self._limit:
                raise BadRequest(f"{_shown(url)} has more than {self._limit / (1 << 20):g} MiB (--max-media-mb)")
        return bytes(data)


def _raw(url: httpx2.URL) -> httpcore2.URL:
    return httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _matches(host: str, domain: str) -> bool:
    if domain.startswith("*."):
        return host.endswith(domain[1:])
    return domain in ("*", host)


def _parse(url: str) -> httpx2.URL:
    """An http(s) URL without credentials, in printable ASCII without backslashes, which parsers read differently."""
    plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    try:
        parsed = httpx2.URL(url) if plain else None
    except httpx2.InvalidURL:
        parsed = None
    sound = (
        parsed is not None
        and parsed.scheme in ("http", "https")
        and parsed.raw_host
        and not parsed.userinfo
        and 0 < (parsed.port or 80) < 65536
    )
    if parsed is None or not sound:
        raise BadRequest(f"{_shown(url)} must be a plain http(s) URL: ASCII, percent-encoded, without user or spaces")
    return parsed


def _redirected(source: httpx2.URL, response: httpcore2.Response) -> str:
    place = next((value for name, value in response.headers if name.lower() == b"location"), b"")
    try:
        return str(source.join(place.decode("ascii")))
    except (httpx2.InvalidURL, UnicodeDecodeError):
        raise BadRequest(f"{_shown(str(source))} redirects to an invalid URL") from None


def _shown(url: str) -> str:
    """A URL in an error: short, printable, and without its query, which may hold a secret."""
    plain = url.split("?", 1)[0].split("#", 1)[0]
    text = plain if len(plain) <= 100 else f"{plain[:97]}..."
    return text if text.isprintable() else ascii(text)
