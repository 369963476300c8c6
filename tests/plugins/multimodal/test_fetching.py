"""Media from files and other hosts: what is reached, and what never is."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import httpcore2
import pytest

from lsv.media.content_parts import Reference
from lsv.media.items import Encoded
from lsv.media.options import Limits, MediaOptions
from lsv_base.errors import BadRequest
from lsv_multimodal.fetching.http import Fetcher
from lsv_multimodal.fetching.nat64 import find_prefixes
from lsv_multimodal.fetching.sources import Sources
from lsv_multimodal.fetching.ssrf import Resolver, is_local, is_public

PUBLIC = "93.184.216.34"
NAMES = {
    "public.test": [PUBLIC],
    "other.test": ["2606:2800:220:1::1"],
    "inside.test": ["10.0.0.7"],
    "local.test": ["127.0.0.1"],
    "half.test": [PUBLIC, "127.0.0.1"],
    "scoped.test": ["fe80::1%eth0"],
}


class Site:
    """A web server on this machine that stands for all public hosts; it notes who was asked for what."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.lookups: list[str] = []
        self.answers: dict[str, bytes] = {}
        self.port = 0

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split()[1].partition("?")[0]
        host = next(line[6:] for line in head.split("\r\n") if line.lower().startswith("host: "))
        self.asked.append((host, path))
        try:
            if path == "/slow":
                await asyncio.sleep(60)
            writer.write(self.answers.get(path, b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"))
            if path == "/endless":
                while True:
                    writer.write(b"x" * 4096)
                    await writer.drain()
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.lookups.append(host)
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        if host not in NAMES:
            raise OSError("unknown name")
        return NAMES[host]

    def fetcher(self, *domains: str, limit: int = 10_000, local: Sequence[str] = ()) -> Fetcher:
        return Fetcher(domains, limit, resolver=self.resolve, network=Wire(self.port, local))


class Wire(httpcore2.AsyncNetworkBackend):
    """Connections to any address end at the site. Each is public, or one of the ``local`` ones that may be reached."""

    def __init__(self, port: int, local: Sequence[str] = ()) -> None:
        self._port = port
        self._local = local
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        address = ipaddress.ip_address(host)
        assert is_public(address) or host in self._local, f"{host} was reached"
        return await self._inner.connect_tcp("127.0.0.1", self._port, timeout)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    server = await found.start()
    found.answers["/cat"] = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ncat"
    yield found
    server.close()


def to(place: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nlocation: {place}\r\ncontent-length: 0\r\n\r\n".encode()


async def refused(fetcher: Fetcher, url: str, seconds: float = 5.0) -> str:
    with pytest.raises(BadRequest) as caught:
        await fetcher.fetch(url, seconds)
    return caught.value.message


async def test_an_allowed_host_is_asked_once_by_its_name(site: Site) -> None:
    assert await site.fetcher("public.test").fetch("http://PUBLIC.test:8080/cat", 5) == b"cat"
    assert site.asked[-1] == ("public.test:8080", "/cat")
    assert site.lookups[-1] == "public.test"


@pytest.mark.parametrize(
    ("domains", "url", "allowed"),
    [
        (("public.test",), "http://public.test/cat", True),
        (("public.test",), "http://public.test./cat", True),
        (("*",), "http://other.test/cat", True),
        (("*.test",), "http://public.test/cat", True),
        (("*.public.test",), "http://public.test/cat", False),
        (("test",), "http://public.test/cat", False),
        (("public.test",), "http://evilpublic.test/cat", False),
        (("public.test",), "http://public.test.evil/cat", False),
        ((), "http://public.test/cat", False),
    ],
)
async def test_hosts_that_are_allowed(site: Site, domains: tuple[str, ...], url: str, allowed: bool) -> None:
    NAMES["public.test."] = [PUBLIC]
    if allowed:
        assert await site.fetcher(*domains).fetch(url, 5) == b"cat"
    else:
        host = url.split("/")[2]
        wanted = f"start with --allowed-media-domains {host}"
        assert (await refused(site.fetcher(*domains), url)).endswith(wanted)
        assert site.lookups == []


@pytest.mark.parametrize(
    "host",
    [
        "inside.test", "local.test", "half.test", "scoped.test", "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.1.2.3",
        "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "224.0.0.1", "240.0.0.1",
        "255.255.255.255", "198.18.0.1", "192.0.2.1", "[::1]", "[::]", "[fe80::1]", "[fc00::1]", "[fd00:ec2::254]",
        "[ff02::1]", "[::ffff:127.0.0.1]", "[::ffff:10.0.0.1]", "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]",
        "[2002:7f00:1::]", "[2001:db8::1]", "[::127.0.0.1]",
    ],
)  # fmt: skip
async def test_what_is_not_public_is_not_reached(site: Site, host: str) -> None:
    assert "public" in await refused(site.fetcher("*"), f"http://{host}/cat")
    assert site.asked == []


LOCAL = ("127.0.0.1", "127.9.9.9", "10.1.2.3", "172.16.0.1", "192.168.1.1", "::1", "fc00::1", "fd12:3456::1")


@pytest.mark.parametrize(
    ("domains", "url", "address"),
    [
        *(((host,), f"http://{f'[{host}]' if ':' in host else host}/cat", host) for host in LOCAL),
        (("[::1]",), "http://[::1]:8080/cat", "::1"),
        (("inside.test",), "http://INSIDE.test:8080/cat", "10.0.0.7"),
        (("*", "local.test"), "http://local.test/cat", "127.0.0.1"),
    ],
)
async def test_a_host_that_is_listed_by_name_or_address_may_be_local(
    site: Site, domains: tuple[str, ...], url: str, address: str
) -> None:
    assert await site.fetcher(*domains, local=(address,)).fetch(url, 5) == b"cat"


@pytest.mark.parametrize("domain", ["*", "*.test"])
async def test_a_pattern_lists_no_local_host(site: Site, domain: str) -> None:
    message = await refused(site.fetcher(domain), "http://inside.test/cat")
    assert message.endswith("start with --allowed-media-domains inside.test to fetch from it")


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254", "168.63.129.16", "100.100.100.200", "0.0.0.0", "224.0.0.1", "[fd00:ec2::254]", "[fe80::1]",
        "[::ffff:127.0.0.1]", "[64:ff9b::a9fe:a9fe]",
    ],
)  # fmt: skip
async def test_a_listed_host_is_not_reached_at_special_addresses(site: Site, host: str) -> None:
    NAMES["cloud.test"] = [host.strip("[]")]
    for domain in (host, "cloud.test"):
        message = await refused(site.fetcher(domain), f"http://{domain}/cat")
        assert message.endswith("its addresses are neither public nor private ones")
    assert not is_local(ipaddress.ip_address(host.strip("[]")))


PUBLIC_ADDRESSES = (
    PUBLIC, "8.8.8.8", "168.63.129.15", "192.88.98.1", "2606:2800:220:1::1", "2001:4860:4860::8888", "2a00:1450::1",
    "3ffe::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2001:4860::5efe:808:808",
)  # fmt: skip
SPECIAL_ADDRESSES = (
    # IPv4: this network, private, shared, loopback, link-local, protocols, documentation, relays, benchmarks,
    # multicast, reserved, broadcast; hosts of clouds
    "0.0.0.0", "10.0.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1",
    "169.254.169.254", "192.0.0.170", "192.0.0.192", "192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1",
    "198.18.0.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16",
    # IPv6: unspecified, loopback, unique local, site-local, link-local, multicast, documentation, discard, segments
    "::", "::1", "fc00::1", "fd00:ec2::254", "fec0::1", "fe80::1", "ff02::1", "ff0e::1", "2001:db8::1", "3fff::1",
    "3fff:fff::1", "100::1", "100:0:0:1::1", "5f00::1", "4000::1", "1::1",
    # IPv4 inside of IPv6: compatible, mapped, SIIT, NAT64, local NAT64, ISATAP, 6to4, Teredo, ORCHID
    "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "::ffff:168.63.129.16",
    "::ffff:0:127.0.0.1", "::ffff:0:808:808", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110",
    "64:ff9b:1::7f00:1", "64:ff9b:1:fffe::a00:1", "64:ff9b:1::808:808", "::5efe:7f00:1", "2001:4860::5efe:a00:1",
    "2001:4860::200:5efe:a00:1", "2001:4860::100:5efe:7f00:1", "fe80::5efe:808:808", "2002:7f00:1::", "2002:808:808::1",
    "2001:0:0:0:0:0:5601:5601", "2001:0:4136:e378:8000:63bf:f7f7:f7f7", "2001:20::1", "2001:10::1", "2001:2::1",
)  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC_ADDRESSES)
def test_public_addresses(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", SPECIAL_ADDRESSES)
def test_addresses_with_a_local_or_special_meaning(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


# the examples of RFC 6052, section 2.4, below another prefix and for the addresses of RFC 7050
@pytest.mark.parametrize(
    ("answer", "prefix", "inside", "outside"),
    [
        ("2a01:db8:c000:aa::", "2a01:db8::/32", "2a01:db8:a00:1::", "2a01:db8:808:808::"),
        ("2a01:db8:1c0:0:aa::", "2a01:db8:100::/40", "2a01:db8:10a:0:1::", "2a01:db8:108:808:8::"),
        ("2a01:db8:122:c000:0:aa00::", "2a01:db8:122::/48", "2a01:db8:122:a00:0:100::", "2a01:db8:122:808:8:800::"),
        ("2a01:db8:122:3c0:0:aa::", "2a01:db8:122:300::/56", "2a01:db8:122:30a:0:1::", "2a01:db8:122:308:8:808::"),
        ("2a01:db8:122:344:c0:0:aa00:0", "2a01:db8:122:344::/64", "2a01:db8:122:344:a:0:100:0",
         "2a01:db8:122:344:8:808:800:0"),
        ("2a01:db8:122:344::c000:aa", "2a01:db8:122:344::/96", "2a01:db8:122:344::a00:1", "2a01:db8:122:344::808:808"),
    ],
)  # fmt: skip
async def test_what_the_network_translates_to_private_addresses_is_not_reached(
    site: Site, answer: str, prefix: str, inside: str, outside: str
) -> None:
    assert find_prefixes([answer, "192.0.0.170"]) == (ipaddress.IPv6Network(prefix),)
    NAMES.update({"ipv4only.arpa": [answer], "in.test": [inside], "out.test": [outside]})
    try:
        assert is_public(ipaddress.ip_address(inside)), "nothing in the address says so"
        fetcher = site.fetcher("*")
        assert "not a public host" in await refused(fetcher, "http://in.test/cat")
        assert await fetcher.fetch("http://out.test/cat", 5) == b"cat"
        assert site.lookups.count("ipv4only.arpa") == 1
    finally:
        del NAMES["ipv4only.arpa"]


@pytest.mark.parametrize(
    "url",
    [
        "http://public.test\\@local.test/cat", "http://local.test#@public.test/cat", "http://user@public.test/cat",
        "http://public.test/a b", "http://public.test/\x00", "http://public.test/\r\nhost: x", "http:///cat", "http://",
        "http://public.test:99999/cat", "http://public.test:x/", "ftp://public.test/cat", "gopher://public.test/",
        "http://pub\u200blic.test/cat", "http:public.test/cat",
    ],
)  # fmt: skip
async def test_urls_that_parsers_read_differently_are_refused(site: Site, url: str) -> None:
    message = await refused(site.fetcher("public.test"), url)
    assert message.isprintable()
    assert site.asked == []


async def test_redirects_are_followed_and_checked_again(site: Site) -> None:
    site.answers |= {
        "/a": to("/b", 301), "/b": to("http://other.test/c", 307), "/c": to("cat", 308), "/loop": to("/loop"),
        "/in": to("http://local.test/cat"), "/meta": to("http://169.254.169.254/latest"), "/out": to("http://far.test/"),
        "/file": to("file:///etc/passwd"), "/bad": to("http://[::1"), "/proto": to("//local.test/cat"),
    }  # fmt: skip
    both = site.fetcher("public.test", "other.test")
    assert await both.fetch("http://public.test/a", 5) == b"cat"
    assert [host for host, _ in site.asked] == ["public.test", "public.test", "other.test", "other.test"]
    assert "more than 3 redirects" in await refused(both, "http://public.test/loop")
    assert "--allowed-media-domains far.test" in await refused(both, "http://public.test/out")
    everywhere = site.fetcher("*")
    for path in ("/in", "/meta", "/proto"):
        assert "not a public host" in await refused(everywhere, f"http://public.test{path}")
    for path in ("/file", "/bad"):
        assert "URL" in await refused(everywhere, f"http://public.test{path}")


async def test_bytes_and_time_are_limited(site: Site) -> None:
    site.answers["/endless"] = b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\n"
    fetcher = site.fetcher("*")
    assert "more than" in await refused(fetcher, "http://public.test/endless")
    began = asyncio.get_running_loop().time()
    assert "took more than 0.2 s" in await refused(fetcher, "http://public.test/slow?key=secret", 0.2)
    assert asyncio.get_running_loop().time() - began < 2
    assert "secret" not in await refused(fetcher, "http://public.test/none?key=secret")
    assert "status 404" in await refused(fetcher, "http://public.test/none")
    assert "can't be fetched" in await refused(fetcher, "http://unknown.test/")


async def test_whoever_goes_away_ends_the_fetch(site: Site) -> None:
    task = asyncio.create_task(site.fetcher("*").fetch("http://public.test/slow", 60))
    while not site.asked:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_slow_host_leaves_connections_to_others(site: Site) -> None:
    NAMES["slow.test"] = [PUBLIC]
    fetcher = site.fetcher("*")
    slow = [asyncio.create_task(fetcher.fetch("http://slow.test/slow", 60)) for _ in range(200)]
    while len(site.asked) < 8:
        await asyncio.sleep(0.01)
    assert await fetcher.fetch("http://public.test/cat", 5) == b"cat"
    assert len([host for host, _ in site.asked if host == "slow.test"]) == 8
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert not fetcher._shares._parties


async def test_names_that_hang_leave_known_ones_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    release, asked = threading.Event(), []

    def look_up(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        if host.startswith("made-up"):
            release.wait(60)
        return [PUBLIC]

    monkeypatch.setattr("lsv_multimodal.fetching.ssrf._look_up", look_up)
    resolver = Resolver()
    assert await resolver("known.test", 80) == [PUBLIC]
    hanging = [asyncio.create_task(resolver(f"made-up-{n % 100}.test", 80)) for n in range(200)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(resolver("known.test", 80), 30) == [PUBLIC]
    hanging[0].cancel()
    release.set()
    await asyncio.gather(*hanging, return_exceptions=True)
    assert len(asked) == 102, "a name is looked up once for all who wait"


class Tls(httpcore2.AsyncMockStream):
    names: ClassVar[list[str | None]] = []

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        assert ssl_context.verify_mode is ssl.CERT_REQUIRED
        assert ssl_context.check_hostname
        self.names.append(server_hostname)
        return self


class TlsWire(Wire):
    async def connect_tcp(self, host: str, *rest: Any, **named: Any) -> httpcore2.AsyncNetworkStream:
        assert host == PUBLIC
        return Tls([b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ncat"])


async def test_tls_asks_for_the_name_at_the_address_that_was_checked(site: Site) -> None:
    fetcher = Fetcher(["public.test"], 100, resolver=site.resolve, network=TlsWire(0))
    assert await fetcher.fetch("https://public.test/cat", 5) == b"cat"
    assert Tls.names == ["public.test"]


async def test_names_are_looked_up_by_the_system() -> None:
    assert {*await Resolver()("localhost", 80)} <= {"127.0.0.1", "::1"}
    with pytest.raises(BadRequest, match="localhost is not a public host"):
        await Fetcher(["*"], 100).fetch("http://localhost:1/", 5)


# Files and data URLs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(b"secret")
    open_folder = tmp_path / "media"
    (open_folder / "in").mkdir(parents=True)
    (open_folder / "cat.png").write_bytes(b"cat")
    (open_folder / "in" / "a cat.png").write_bytes(b"spaced")
    (open_folder / "big").write_bytes(b"x" * 101)
    (open_folder / "out").symlink_to(tmp_path / "secret")
    (open_folder / "same").symlink_to(open_folder / "cat.png")
    (open_folder / "away").symlink_to(tmp_path)
    os.mkfifo(open_folder / "pipe")
    return open_folder


async def read(url: str, folder: Path | None = None, **rest: Any) -> Encoded:
    options = MediaOptions(folder=str(folder) if folder else None, limits=Limits(bytes=100))
    return await Sources(options).read(Reference("image", "messages[0].content[1]", url=url, **rest))


@pytest.mark.row("F-221", "F-701")
@pytest.mark.parametrize(
    ("url", "data"),
    [
        ("file:{}/cat.png", b"cat"),
        ("file://{}/cat.png", b"cat"),
        ("file://localhost{}/cat.png", b"cat"),
        ("FILE://{}/in/a%20cat.png", b"spaced"),
        ("file://{}/in/../cat.png", b"cat"),
        ("file://{}/same", b"cat"),
    ],
)
async def test_files_of_the_folder(folder: Path, url: str, data: bytes) -> None:
    assert (await read(url.format(folder), folder)).data == data


@pytest.mark.row("F-701")
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file://{}/../secret", "has no such file"),
        ("file://{}/%2e%2e/secret", "has no such file"),
        ("file://{}/out", "has no such file"),
        ("file://{}/away/secret", "has no such file"),
        ("file:///etc/passwd", "has no such file"),
        ("file://{}/none", "has no such file"),
        ("file://host{}/cat.png", "absolute path"),
        ("file:cat.png", "absolute path"),
        ("file://{}/cat.png%00", "absolute path"),
        ("file://{}/pipe", "only regular files"),
        ("file://{}/in", "Is a directory"),
        ("file://{}/big", "more than"),
    ],
)
async def test_files_that_are_not_read(folder: Path, url: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        await read(url.format(folder), folder)
    assert caught.value.param == "messages[0].content[1]"
    assert caught.value.message.startswith("messages[0].content[1]: ")


@pytest.mark.row("F-221")
async def test_no_file_is_read_unless_a_folder_is_named(folder: Path) -> None:
    with pytest.raises(BadRequest, match=f"--allowed-local-media-path {re.escape(str(folder))}$"):
        await read(f"file://{folder}/cat.png")
    with pytest.raises(BadRequest, match=r"--allowed-local-media-path FOLDER$"):
        await read(f"file://{folder}/{'x' * 300}/cat.png")
    with pytest.raises(BadRequest, match=r"--allowed-local-media-path '/my media;rm'$"):
        await read("file:///my%20media;rm/cat.png")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png,abc", "must be base64"),
        ("data:image/png;base64", "must be base64"),
        ("data:image/png;base64,ä", "ASCII"),
        ("data:image/png;base64," + "A" * 200, "more than"),
        ("cat.png", "must begin with"),
        ("javascript:alert(1)", "must begin with"),
        ("", "must begin with"),
    ],
)
async def test_urls_that_are_no_media(url: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        await read(url)


@pytest.mark.row("F-698")
async def test_data_urls_are_handed_on_as_they_are() -> None:
    assert await read("DATA:image/PNG;charset=x;BASE64,QUJD") == Encoded(b"QUJD", base64=True)
    assert await read("", base64="QUJD") == Encoded(b"QUJD", base64=True)


async def test_a_slow_disk_does_not_hold_up_the_loop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    real: Callable[..., Path] = Path.resolve

    def watch(path: Path, strict: bool = False) -> Path:
        threads.append(threading.current_thread())
        return real(path, strict)

    monkeypatch.setattr(Path, "resolve", watch)
    await read(f"file://{folder}/cat.png", folder)
    assert threads
    assert threading.main_thread() not in threads
