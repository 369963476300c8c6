"""Names to addresses that a server may connect to on behalf of strangers: public ones, and local ones of listed hosts.

A name is resolved once, every address it has is checked, and the connection goes to a checked one, so that a name
server can't answer differently the second time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpcore2

from lsv_base.errors import BadRequest
from lsv_multimodal.fetching.nat64 import NAME as NAT64_NAME
from lsv_multimodal.fetching.nat64 import carried_below, find_prefixes

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) to addresses as text."""

_LOOKUPS = 16
_KNOWN = 1024
_PREFIX_SECONDS = 600.0
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that is assigned for hosts of the internet (RFC 4291); everything else has a local or special meaning."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""Hosts that only have IPv4, as networks that only have IPv6 see them (RFC 6052)."""
_SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in (
        "100.64.0.0/10",  # shared behind a provider's translator (RFC 6598); metadata of some clouds
        "168.63.129.16/32",  # the host below a machine of Azure
        "192.0.0.0/24",  # protocol assignments (RFC 6890)
        "192.88.99.0/24",  # relays of 6to4 (RFC 7526)
        "2001::/23",  # protocol assignments (RFC 2928), Teredo among them, which carries an IPv4 address
        "2001:db8::/32",  # documentation (RFC 3849)
        "2002::/16",  # 6to4, which carries an IPv4 address (RFC 7526)
        "3fff::/20",  # documentation (RFC 9637)
    )
)
"""What is not public, whatever the interpreter's own table of addresses says."""
_ISATAP = 0x5EFE
_LOCAL = tuple(
    ipaddress.ip_network(network)
    for network in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
)
"""Loopback and private networks (RFC 1918, RFC 4193)."""
_METADATA = ipaddress.IPv6Network("fd00:ec2::/32")
"""What a cloud tells its machines, credentials among it, at private addresses."""
DOMAINS = "--allowed-media-domains"


class Resolver:
    """Asks the system's resolver, in threads of its own, which can't be interrupted.

    A name is looked up once for all who wait for it, and names that have had an address before have threads of their
    own: however many names with slow servers a stranger makes up, known hosts are found.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._for_known = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="names")
        self._for_others = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="new-names")
        self._asked: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a name. Raises ``OSError``."""
        asked = self._asked.get((host, port))
        if asked is None:
            asked = self._ask(host, port)
        return await asyncio.shield(asked)

    def _ask(self, host: str, port: int) -> asyncio.Future[Sequence[str]]:
        threads = self._for_known if host in self._known else self._for_others
        asked = asyncio.get_running_loop().run_in_executor(threads, _look_up, host, port)
        self._asked[host, port] = asked
        asked.add_done_callback(partial(self._note, host, port))
        return asked

    def _note(self, host: str, port: int, asked: asyncio.Future[Sequence[str]]) -> None:
        del self._asked[host, port]
        if asked.cancelled() or asked.exception() is not None:
            return
        self._known[host] = None
        self._known.move_to_end(host)
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)


def _look_up(host: str, port: int) -> Sequence[str]:
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(address: Address) -> bool:
    """Whether an address belongs to a host of the open internet, and so does the IPv4 address it carries, if any."""
    carried = _carried(address)
    if carried is not None and not is_public(carried):
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:
        return carried is not None
    special = any(address.version == network.version and address in network for network in _SPECIAL)
    return address.is_global and not address.is_multicast and not special


def _carried(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that packets may end at: of a mapped address, a translated one (RFC 6052), or ISATAP (RFC 5214).

    All other forms that carry one are refused as a whole: SIIT and IPv4-compatible ones, the prefix for local
    translation (RFC 8215), 6to4 and Teredo.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return None
    is_isatap = (int(address) >> 32) & 0xFFFF == _ISATAP and (int(address) >> 48) & 0xFCFF == 0
    if address in _NAT64 or (is_isatap and address in _UNICAST):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped


def is_local(address: Address) -> bool:
    """Whether an address is a loopback or private one in its plain form, and no cloud's metadata."""
    inside = any(address.version == network.version and address in network for network in _LOCAL)
    return inside and address not in _METADATA


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to public addresses, and to local ones of ``listed`` hosts, which the operator names one by one.

    TLS still speaks to the name: httpcore hands it to ``start_tls`` itself.
    """

    def __init__(self, inner: httpcore2.AsyncNetworkBackend, resolver: Resolve, *, listed: Container[str] = ()) -> None:
        self._inner = inner
        self._resolve = resolver
        self._listed = listed
        self._translated: tuple[ipaddress.IPv6Network, ...] = ()
        self._known_until = 0.0
        self._asking = asyncio.Lock()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises ``BadRequest`` where any of the name's addresses may not be reached."""
        try:
            found = await self._resolve(host, port)
        except OSError as cause:
            raise httpcore2.ConnectError(f"the name {host} has no address") from cause
        translated = await self._find_translated() if any(":" in text for text in found) else ()
        for text in found:
            self._check(host, text, translated)
        failure: Exception = httpcore2.ConnectError(f"the name {host} has no address")
        for text in dict.fromkeys(found):
            try:
                return await self._inner.connect_tcp(text, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as cause:
                failure = cause
        raise failure

    def _check(self, host: str, text: str, translated: Sequence[ipaddress.IPv6Network]) -> None:
        """Raises ``BadRequest`` where an address of the host, or what it leads to in this network, is out of reach."""
        # a scope ("%eth0") only follows addresses of the local network
        address = None if "%" in text else ipaddress.ip_address(text)
        carried = carried_below(address, translated) if isinstance(address, ipaddress.IPv6Address) else []
        reached = [address, *carried]
        if all(one is not None and is_public(one) for one in reached):
            return
        if all(one is not None and (is_public(one) or is_local(one)) for one in reached):
            name = host.lower().rstrip(".")
            if name in self._listed:
                return
            raise BadRequest(f"{host} is not a public host: start with {DOMAINS} {name} to fetch from it")
        raise BadRequest(f"{host} is not a public host: its addresses are neither public nor private ones")

    async def _find_translated(self) -> tuple[ipaddress.IPv6Network, ...]:
        """The prefixes by which this network leads to IPv4 addresses, asked for now and then."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if now >= self._known_until:
                try:
                    self._translated = find_prefixes(await self._resolve(NAT64_NAME, 443))
                except OSError:
                    self._translated = ()
                self._known_until = now + _PREFIX_SECONDS
            return self._translated

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("media are not fetched from sockets")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
