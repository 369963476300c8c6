"""Prefixes by which a network that only has IPv6 reaches hosts that only have IPv4 (RFC 6052), found as RFC 7050 says.

Any network may choose its own: an address below it looks like a public one, and leads to the IPv4 address it carries.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

NAME = "ipv4only.arpa"
"""It has IPv4 addresses alone; what a resolver answers for IPv6 was made with the network's prefix."""
_ANSWERS = (ipaddress.IPv4Address("192.0.0.170"), ipaddress.IPv4Address("192.0.0.171"))
_LENGTHS = (96, 64, 56, 48, 40, 32)


def find_prefixes(answers: Iterable[str]) -> tuple[ipaddress.IPv6Network, ...]:
    """The prefixes that a resolver's addresses of ``NAME`` were made with; none where nothing is translated."""
    found = [ipaddress.ip_address(answer.partition("%")[0]) for answer in answers]
    return tuple(
        ipaddress.IPv6Network((address, length), strict=False)
        for address in found
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None
        for length in _LENGTHS
        if _carried(address, length) in _ANSWERS
    )


def carried_below(
    address: ipaddress.IPv6Address, prefixes: Iterable[ipaddress.IPv6Network]
) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that an address leads to, by each prefix it is below."""
    return [_carried(address, prefix.prefixlen) for prefix in prefixes if address in prefix]


def _carried(address: ipaddress.IPv6Address, length: int) -> ipaddress.IPv4Address:
    """The four bytes behind the prefix; bits 64 to 71 are not among them (RFC 6052, section 2.2)."""
    data = address.packed if length == 96 else address.packed[:8] + address.packed[9:]
    return ipaddress.IPv4Address(data[length // 8 : length // 8 + 4])
