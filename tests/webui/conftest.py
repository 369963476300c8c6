"""A page in front of an API whose engine is a fake, both on real ports; and a browser that opens it."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lsv.engine.client import Service
from lsv_api.app import create_app
from lsv_api.options import ApiOptions
from lsv_api.server import Server
from lsv_base.processes.ports import free_port
from lsv_testing.fakes.client import FakeClient, fake_config
from lsv_webui.options import PageOptions

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

ANSWER = "Blue light is **scattered** most."
KEY = "correct-key"

WORDS_SO_FAR = "(v => {})(document.querySelector('#lsv-words textarea').value)"
"""What a transcription is to be like, as JavaScript over its text ``v``."""


class ApiThread:
    """An API server with an event loop of its own."""

    def __init__(self, **options: Any) -> None:
        self.engine = FakeClient(fake_config("fake", max_model_len=512), answer=ANSWER)
        self.options = ApiOptions(port=free_port(), **options)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._started.wait(20)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.options.port}"

    async def _run(self) -> None:
        service = Service({"fake": self.engine})
        self._server = Server(service, self.options, create_app(service, self.options))
        self._loop = asyncio.get_running_loop()
        running = asyncio.create_task(self._server.run())
        while not self._server.address:
            await asyncio.sleep(0.005)
        self._started.set()
        await running

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(lambda: (self._server.stop(), self._server.stop()))
        self._thread.join(20)


@pytest.fixture(scope="session")
def api() -> Iterator[ApiThread]:
    """An API without a key. Its engine's pace and answer are set by tests, and set back by ``calm``."""
    running = ApiThread()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def calm(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "api" in request.fixturenames:
        engine = request.getfixturevalue("api").engine
        engine.pace, engine.answer, engine.failure = 0.0, ANSWER, None


@pytest.fixture
def locked() -> Iterator[ApiThread]:
    """An API that asks for ``KEY``."""
    running = ApiThread(api_keys=(KEY,))
    yield running
    running.stop()


class Command:
    """An ``lsv`` process and what it wrote."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lsv", *arguments], stdout=output, stderr=subprocess.STDOUT
            )

    def wait_for(self, line: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while line not in self.log.read_text():
            assert time.monotonic() < deadline, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


class Pages:
    """Pages by what they were told; each is started once."""

    def __init__(self) -> None:
        self._started: dict[tuple[str, str | None], tuple[str, Any]] = {}

    def url(self, server: str, key: str | None = None) -> str:
        from lsv_webui.page import address, launch

        if (server, key) not in self._started:
            options = PageOptions(server=server, port=free_port(), api_key=key)
            with ThreadPoolExecutor(1) as pool:
                page = pool.submit(asyncio.run, _call(launch, options)).result()
            self._started[server, key] = address(options.host, options.port), page
        return self._started[server, key][0]

    def close(self) -> None:
        for _, page in self._started.values():
            page.close(verbose=False)


async def _call(launch: Callable[[PageOptions], Any], options: PageOptions) -> Any:
    """In an event loop, because without one Gradio creates its own loops and never closes them."""
    return launch(options)


@pytest.fixture(scope="session")
def pages() -> Iterator[Pages]:
    """Pages that look at their servers more often than ones for people do."""
    opened = Pages()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lsv_webui.dashboard.tab.POLL_SECONDS", 0.25)
        patch.setattr("lsv_webui.dashboard.tab.PAUSE_SECONDS", 60.0)
        patch.setattr("lsv_webui.app.STATUS_SECONDS", 0.5)
        yield opened
    opened.close()


Open = Callable[..., Any]


@pytest.fixture
def visit(chromium: Any) -> Iterator[Open]:
    """Open a page in a browser that was never here, or in that of another page.

    What a page asks for elsewhere, and its errors, fail the test.
    """
    contexts: list[Any] = []
    faults: list[str] = []

    def open_page(url: str, width: int = 1280, height: int = 800, beside: Any = None) -> Any:
        context = beside.context if beside else chromium.new_context(viewport={"width": width, "height": height})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("request", lambda asked: _judge(asked.url, url, faults))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(url)
        page.wait_for_selector("#lsv-status .lsv-pill")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


def _judge(asked: str, own: str, faults: list[str]) -> None:
    if not asked.startswith((own, "data:", "blob:")):
        faults.append(f"the page asked for {asked}")


def ask(page: Any, text: str) -> None:
    page.fill("#lsv-box textarea", text)
    page.press("#lsv-box textarea", "Enter")


def attach(page: Any, files: Sequence[Path]) -> None:
    """Put files into the message box, and wait until they are uploaded."""
    page.set_input_files("#lsv-box input[type=file]", files)
    page.wait_for_function(f"document.querySelectorAll('#lsv-box .thumbnail-item').length == {len(files)}")


ANSWERS = "#lsv-chat .bot.message:not(:has(.thought-group, .lsv-note, .lsv-error, .lsv-waiting))"
"""Answers themselves, without the thinking before them and the figures below."""


def last_answer(page: Any) -> Any:
    return page.locator(ANSWERS).last


def note(page: Any) -> str:
    """The figures under the last answer, once they are there."""
    found = page.locator("#lsv-chat .bot.message").last.locator(".lsv-note:not(:has-text('writing'))")
    found.wait_for()
    return str(found.inner_text())


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's Chromium. Skips, and says why, where there is none.

    Playwright keeps an event loop running in this thread: a module that uses this has no asynchronous tests.
    """
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed: make browser installs it")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make browser does it")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()
