"""Foreign web pages attack lsv's own web page: under their host name, from their site, and with endless uploads."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lsv_base.errors import ConfigError
from lsv_base.processes.ports import free_port
from lsv_webui import gate
from lsv_webui.gate import Gate, measure
from lsv_webui.options import PageOptions

CALL = "/gradio_api/call/chat"
UPLOAD = "/gradio_api/upload"
QUESTION = json.dumps({"data": ["Who are you?", [], "", None, 0, 12, None]}).encode()
FORM = "multipart/form-data; boundary=x"
EVIL = "evil.example:7860"


def as_form(*files: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.bin"\r\n\r\n'
    return b"".join(head + file + b"\r\n" for file in files) + b"--x--\r\n"


class Page:
    """A page on a port, without a server behind it."""

    def __init__(self, uploads: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        pytest.importorskip("gradio")
        from lsv_webui.page import launch

        monkeypatch.setenv("GRADIO_TEMP_DIR", str(uploads))
        self.port = free_port()
        given = PageOptions(server="http://127.0.0.1:9", port=self.port, api_key="SECRET", **options)

        async def start() -> Any:
            return launch(given, uploads)

        with ThreadPoolExecutor(1) as pool:
            self._page = pool.submit(asyncio.run, start()).result()

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
        """The status and text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        given = {"Host": f"127.0.0.1:{self.port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, body or None, given)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def close(self) -> None:
        self._page.close(verbose=False)


@pytest.fixture(scope="module")
def uploads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uploads")


@pytest.fixture(scope="module")
def page(uploads: Path) -> Iterator[Page]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        running = Page(uploads, monkeypatch)
        yield running
        running.close()


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [("GET", "/", ""), ("GET", "/config", ""), ("POST", CALL, "application/json"), ("POST", UPLOAD, FORM)],
)
def test_a_foreign_host_name_is_refused(page: Page, method: str, path: str, kind: str) -> None:
    """DNS rebinding: to the browser, the page belongs to the site that asks."""
    body = {CALL: QUESTION, UPLOAD: as_form(b"0" * 1000)}.get(path, b"")
    status, text = page.ask(method, path, body, Host=EVIL, Origin=f"http://{EVIL}", Content_Type=kind)
    assert (status, json.loads(text)["error"]["code"]) == (403, "host_not_allowed")
    own = f"http://127.0.0.1:{page.port}"
    assert page.ask(method, path, body, Origin=own, Content_Type=kind)[0] == 200


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/x-www-form-urlencoded", FORM, ""])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
def test_pages_of_other_sites_are_refused(page: Page, uploads: Path, origin: str, kind: str) -> None:
    before = measure(uploads)
    for path, body in ((CALL, QUESTION), (UPLOAD, as_form(b"0" * 1000))):
        assert page.ask("POST", path, body, Origin=origin, Content_Type=kind)[0] in (403, 415)
    assert measure(uploads) == before


def test_programs_use_the_page_as_before(page: Page) -> None:
    assert page.ask("POST", CALL, QUESTION, Content_Type="application/json")[0] == 200
    status, text = page.ask("POST", UPLOAD, as_form(b"0" * 1000), Content_Type=FORM)
    assert status == 200
    assert Path(json.loads(text)[0]).stat().st_size == 1000


def test_uploads_end_when_the_folder_is_full(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    assert page.ask("POST", UPLOAD, as_form(b"1" * 100_000), Content_Type=FORM)[0] == 200
    monkeypatch.setattr(gate, "FOLDER_BYTES", 150_000)
    status, text = page.ask("POST", UPLOAD, as_form(b"2" * 100_000), Content_Type=FORM)
    assert (status, json.loads(text)["error"]["code"]) == (507, "uploads_full")


def test_large_bodies_are_refused_by_their_length(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_BYTES", 10_000)
    monkeypatch.setattr(gate, "UPLOAD_BYTES", 10_000)
    for path, body, kind in (
        (CALL, b'{"data": "' + b"x" * 20_000, "application/json"),
        (UPLOAD, as_form(b"3" * 20_000), FORM),
    ):
        status, text = page.ask("POST", path, body, Content_Type=kind)
        assert (status, json.loads(text)["error"]["code"]) == (413, "request_too_large")


async def test_bodies_without_a_length_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_BYTES", 2500)
    sent: list[Any] = []
    read = 0

    async def take(_scope: Any, receive: Any, _send: Any) -> None:
        nonlocal read
        while (await receive())["more_body"]:
            read += 1000

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": CALL, "headers": [(b"content-type", b"application/json")]}
    await Gate(take, options=PageOptions(server=""))(scope, receive, send)
    assert sent[0]["status"] == 413
    assert read == 2000
    scope["headers"] = [(b"content-length", b"-1"), (b"content-type", b"application/json")]
    sent.clear()
    await Gate(take, options=PageOptions(server=""))(scope, receive, send)
    assert sent[0]["status"] == 400


def test_named_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Page(tmp_path, monkeypatch, allowed_hosts=("Chat.example",))
    try:
        assert running.ask("GET", "/config", Host="chat.example")[0] == 200
        assert running.ask("GET", "/config", Host=EVIL)[0] == 403
    finally:
        running.close()


def test_the_settings_reach_the_page() -> None:
    from lsv_webui.frontend import page_options

    given = {
        "ssl_certfile": None, "port": 8000, "host": "127.0.0.1", "api_key": ("k",), "allowed_hosts": ("a.example",),
        "webui.host": "127.0.0.1", "webui.port": 1, "webui.api_key": None, "webui.allowed_hosts": ("b.example",),
    }  # fmt: skip
    assert page_options(given).allowed_hosts == ("a.example", "b.example")
    with pytest.raises(ConfigError):
        page_options({**given, "port": 0})
