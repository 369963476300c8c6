"""Names to addresses that a server may connect to on behalf of strangers: public ones alone.

A name is resolved once, every address it has is checked, and the connection goes to a checked one, so that a name
server can't answer differently the second time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpcore2

from lsv.errors import BadRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) to addresses as text."""

_LOOKUPS = 8
_SHARED = ipaddress.ip_network("100.64.0.0/10")
_COMPATIBLE = ipaddress.ip_network("::/96")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Resolver:
    """Asks the system's resolver, in threads of its own: a name server that hangs holds up other names alone."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="names")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a name. Raises ``OSError``."""
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look_up)
        return [str(entry[4][0]) for entry in found]


def is_public(address: Address) -> bool:
    """Whether an address belongs to the open internet, and so does the IPv4 address it carries, if any."""
    carried = _carried(address)
    if carried is not None:
        return is_public(carried)
    return address.is_global and not address.is_multicast and not (address.version == 4 and address in _SHARED)


def _carried(address: Address) -> Address | None:
    """The IPv4 address inside a mapped, compatible, translated (RFC 6052), 6to4 or Teredo one."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _NAT64 or address in _COMPATIBLE:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


class PublicBackend(httpcore2.AsyncNetworkBackend):
    """Connects to public addresses alone. TLS still speaks to the name: httpcore hands it to ``start_tls`` itself."""

    def __init__(self, inner: httpcore2.AsyncNetworkBackend, resolver: Resolve) -> None:
        self._inner = inner
        self._resolve = resolver

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises ``BadRequest`` where any of the name's addresses is not public."""
        try:
            found = await self._resolve(host, port)
        except OSError as cause:
            raise httpcore2.ConnectError(f"the name {host} has no address") from cause
        for text in found:
            # a scope ("%eth0") only stands behind addresses of the local network
            if "%" in text or not is_public(ipaddress.ip_address(text)):
                raise BadRequest(f"{host} is not a public host: media are fetched from public addresses alone")
        failure: Exception = httpcore2.ConnectError(f"the name {host} has no address")
        for text in dict.fromkeys(found):
            try:
                return await self._inner.connect_tcp(text, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as cause:
                failure = cause
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("media are not fetched from sockets")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
