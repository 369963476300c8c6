"""Where a server listens: a unix socket, and TLS with certificates of clients."""

from __future__ import annotations

import socket
import ssl
import subprocess
from pathlib import Path

import httpx2
import pytest

from lsv_api.listening import tls_context
from lsv_api.options import ApiOptions
from lsv_base.errors import ConfigError
from suite.sites import StartSite

_NEW_KEY = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Papers:
    """An authority, and certificates that it has signed for a server and a client; one client is a stranger's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for authority in ("authority", "stranger"):
            self._run(*_NEW_KEY, "-x509", "-days", "2", "-subj", f"/CN={authority}",
                      "-keyout", f"{authority}.key", "-out", f"{authority}.pem")  # fmt: skip
        self._sign("server", "authority")
        self._sign("client", "authority")
        self._sign("other", "stranger")

    def file(self, name: str) -> str:
        return str(self._folder / name)

    def client(self, name: str | None) -> ssl.SSLContext:
        """What a client connects with, who trusts the server."""
        context = ssl.create_default_context(cafile=self.file("authority.pem"))
        if name is not None:
            context.load_cert_chain(self.file(f"{name}.pem"), self.file(f"{name}.key"))
        return context

    def _sign(self, name: str, authority: str) -> None:
        (self._folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
        self._run(*_NEW_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self._run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey", f"{authority}.key",
                  "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    try:
        return Papers(tmp_path_factory.mktemp("papers"))
    except FileNotFoundError:
        pytest.skip("openssl is not installed")


async def ask(url: str, verify: ssl.SSLContext) -> int:
    async with httpx2.AsyncClient(verify=verify) as http:
        return (await http.get(f"{url}/v1/models")).status_code


@pytest.mark.row("F-210", "F-211", "F-114")
@pytest.mark.parametrize(
    ("asked", "accepted", "refused"),
    [(0, (None, "client", "other"), ()), (1, (None, "client"), ("other",)), (2, ("client",), (None, "other"))],
)
async def test_certificates_of_clients(
    start: StartSite, papers: Papers, asked: int, accepted: tuple[str | None, ...], refused: tuple[str | None, ...]
) -> None:
    site = await start(
        ssl_certfile=papers.file("server.pem"),
        ssl_keyfile=papers.file("server.key"),
        ssl_ca_certs=papers.file("authority.pem"),
        ssl_cert_reqs=asked,
    )
    assert site.server.address.startswith("https://127.0.0.1:")
    for name in accepted:
        assert await ask(site.server.address, papers.client(name)) == 200
    for name in refused:
        with pytest.raises((httpx2.TransportError, ssl.SSLError)):
            await ask(site.server.address, papers.client(name))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ssl_ca_certs": "nowhere.pem"}, "ssl-ca-certs can't be used"),
        ({"ssl_ciphers": "no such cipher"}, "ssl-ciphers can't be used"),
    ],
)
def test_files_and_ciphers_that_can_not_be_used(papers: Papers, given: dict[str, str], words: str) -> None:
    files = {"ssl_certfile": papers.file("server.pem"), "ssl_keyfile": papers.file("server.key")}
    with pytest.raises(ConfigError, match=words):
        tls_context(ApiOptions(**files, **given))  # type: ignore[arg-type]


def test_certificates_need_an_authority() -> None:
    with pytest.raises(ConfigError, match="give their authorities with ssl-ca-certs"):
        ApiOptions(ssl_certfile="a", ssl_keyfile="b", ssl_cert_reqs=2)
    with pytest.raises(ConfigError, match="ssl-ca-certs requires HTTPS"):
        ApiOptions(ssl_ca_certs="a")


async def ask_at(path: Path, **body: object) -> httpx2.Response:
    transport = httpx2.AsyncHTTPTransport(uds=str(path))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        if body:
            return await http.post("/v1/completions", json=body)
        return await http.get("/v1/models")


async def test_a_unix_socket(start: StartSite, tmp_path: Path) -> None:
    path = tmp_path / "lsv.sock"
    site = await start(uds=str(path))
    assert site.server.address == f"unix:{path}"
    assert (await ask_at(path)).json()["data"][0]["id"] == "fake"
    assert (await ask_at(path, prompt="Hi", max_tokens=4)).status_code == 200
    with pytest.raises(ConfigError, match="a server listens there"):
        await start(uds=str(path))


async def test_a_socket_that_was_left_behind_is_replaced(start: StartSite, tmp_path: Path) -> None:
    path = tmp_path / "lsv.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    site = await start(uds=str(path))
    assert (await ask_at(path)).status_code == 200
    site.server.stop()
    site.server.stop()
    await site.task
    assert not path.exists()


async def test_a_file_is_not_replaced(start: StartSite, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    with pytest.raises(ConfigError, match="listen on the unix socket"):
        await start(uds=str(path))
    assert path.read_text() == "kept"
