"""Every view of the page as a picture, to look at: ``python -m tests.webui.screenshots views FOLDER``.

The pictures of ``docs/images``, with a server that answers: ``python -m tests.webui.screenshots docs http://HOST:PORT``.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lsv_webui.options import PageOptions
from lsv_webui.page import address, launch

from .conftest import CHROMIUM, ask, attach, free_port, note
from .media_files import draw_circle, move_square, play_beeps
from .stand_in import StandIn, Written

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}

WRITTEN = r"""How far light is bent is what Snell's law says: \(n_1 \sin\theta_1 = n_2 \sin\theta_2\).

$$\theta(\alpha) = 4\arcsin\frac{\sin\alpha}{n} - 2\alpha$$

```python
from math import asin, degrees, sin

def turned(alpha: float, n: float = 1.333) -> float:
    return degrees(4 * asin(sin(alpha) / n) - 2 * alpha)
```

| colour | refractive index | angle |
|---|---:|---:|
| red | 1.331 | 42.4° |
| green | 1.334 | 42.0° |
| violet | 1.344 | 40.6° |

1. The steepest ray decides, *not* the average one.
2. A second bow is **reversed**, at about `51°`.

- [x] sunshine behind
- [ ] rain ahead

> Rainbows have no place of their own: everybody sees another one."""

SEARCH = '{"query": "rainbow geometry", "limit": 3}'

THOUGHT = (
    *({"reasoning_content": piece} for piece in (
        "The visitor asks ", "how far it is.\n\n", "1. Light travels at 299,792 km/s.\n", "2. It takes ",
        "about **1.28 s**.\n\n", "So the distance is their product.",
    )),
    *({"content": piece} for piece in ("The Moon is ", "about 384,400 km ", "away, or $1.28$ ", "light seconds.")),
)  # fmt: skip
"""Deltas of an answer that was thought about."""

CALLED = (
    {"reasoning_content": "I should look that up."},
    {"content": "Let me look that up."},
    {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "search", "arguments": ""}}]},
    *({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in (SEARCH[:12], SEARCH[12:])),
)
"""Deltas of an answer that asks for a tool."""

RECKONED = (
    {"reasoning_content": "I need to work out 3847 * 29."},
    {"tool_calls": [{"index": 0, "id": "a", "type": "function",
                     "function": {"name": "calculate", "arguments": '{"expression": "3847 * 29"}'}}]},
)  # fmt: skip
"""Deltas of an answer that calls a tool of the page."""

ANSWERS: Mapping[str, Written] = {
    "How high is a rainbow?": WRITTEN,
    "What is this?": "A red circle on white, three short beeps, and a blue square that moves to the right.",
    "Why is the sky blue?": "Air scatters short waves more than long ones: blue light reaches us from everywhere.",
    "How far is the Moon?": THOUGHT,
    "How high is it over a rainbow?": CALLED,
    "What is 3847 * 29?": RECKONED,
    "111563": "3847 * 29 = 111563.",
}

TOPICS = (
    "Plan a week in Lisbon", "Rewrite this letter, kinder", "Regular expression for dates", "What rhymes with orange?",
    "Explain how a heat pump works to a child", "Bread without kneading", "Translate a contract clause",
    "Compare B-trees with LSM trees", "Names for a grey cat", "Draft a speech for a wedding", "Prime numbers in Rust",
    "Who was Ada Lovelace?", "Undo the last commit", "Knots for climbing", "Summarise chapter three", "Mean or median?",
)  # fmt: skip


FILES: Mapping[str, tuple[str, Callable[[Path], Path]]] = {
    "image": ("circle.png", draw_circle),
    "audio": ("beeps.wav", play_beeps),
    "video": ("square.mp4", move_square),
}

CONVERSATIONS = (
    (("What is the capital of France?", ""),),
    (("Tell me a story.", ""),),
    (
        ("Tell me about Mira.", ""),
        ("Give Mira's card as JSON.", ""),
        ("How many beeps do you hear?", "audio"),
        ("What do you see?", "image"),
    ),
)
"""What lsv-demo is asked for the documentation, and the kind of file that is shown with it, if it takes such files."""


def make_files(place: Path) -> dict[str, Path]:
    """A file of each kind."""
    return {kind: make(place / name) for kind, (name, make) in FILES.items()}


class Visit:
    """A page of the stand-in's, open in a browser that was never here."""

    def __init__(self, page: Any, server: StandIn, media: list[Path]) -> None:
        self.page, self.server, self.media = page, server, media

    def ask(self, text: str) -> None:
        ask(self.page, text)
        self.page.locator(".lsv-note:not(:has-text('writing')), .lsv-error").last.wait_for()
        self.page.wait_for_selector("#lsv-box .submit-button")
        self.page.wait_for_timeout(500)

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()
        self.page.wait_for_timeout(300)


def empty(visit: Visit) -> None:
    pass


def text(visit: Visit) -> None:
    visit.ask("How high is a rainbow?")


def attached(visit: Visit) -> None:
    attach(visit.page, visit.media)
    visit.page.fill("#lsv-box textarea", "What is this?")


def media(visit: Visit) -> None:
    attach(visit.page, visit.media)
    visit.ask("What is this?")


def streaming(visit: Visit) -> None:
    visit.server.pace = 0.2
    ask(visit.page, "Why is the sky blue?")
    visit.page.wait_for_timeout(1500)


def thought(visit: Visit) -> None:
    visit.server.pace = 0.1
    visit.ask("How far is the Moon?")
    visit.page.locator(".thought-group [role=button]").last.click()
    visit.ask("How high is it over a rainbow?")
    visit.page.wait_for_timeout(500)


def thinking(visit: Visit) -> None:
    visit.server.pace = 0.5
    ask(visit.page, "How far is the Moon?")
    visit.page.wait_for_timeout(1800)


def edited(visit: Visit) -> None:
    visit.ask("Why is the sky blue?")
    visit.page.locator("#lsv-chat button:is([title='Edit'], [aria-label='Edit'])").first.click()
    visit.page.wait_for_timeout(300)


def scrolled(visit: Visit) -> None:
    visit.ask("How high is a rainbow?")
    visit.ask("How far is the Moon?")
    visit.page.locator("#lsv-chat .bubble-wrap").evaluate("box => box.scrollTo(0, 120)")
    visit.page.wait_for_timeout(500)


def broken(visit: Visit) -> None:
    visit.server.cut = 8
    visit.ask("Why is the sky blue?")
    visit.server.cut, visit.server.page = None, (502, b"<html><body><h1>502 Bad Gateway</h1></body></html>")
    visit.ask("And now?")
    visit.server.page = None


def refused(visit: Visit) -> None:
    attach(visit.page, visit.media[:1])
    visit.page.click("#lsv-model input")
    visit.page.get_by_role("option", name="words").click()
    visit.page.get_by_text("words takes text only").wait_for()
    visit.ask("What is this?")


def history(visit: Visit) -> None:
    for number, topic in enumerate(TOPICS):
        record = {"id": f"t{number}", "at": number + 1, "title": topic, "messages": [{"role": "user", "text": topic}]}
        visit.page.evaluate("record => lsvStore.write(record)", json.dumps(record))
    visit.page.reload()
    visit.page.wait_for_selector("#lsv-status .ready")
    visit.ask("Why is the sky blue?")
    if visit.page.viewport_size["width"] < 768:
        visit.page.click("#lsv-side .toggle-button")
        visit.page.wait_for_timeout(500)


def settings(visit: Visit) -> None:
    visit.page.click("#lsv-settings .toggle-button")
    visit.page.get_by_text("Tools", exact=True).click()
    visit.page.get_by_text("Structured output").click()
    visit.page.wait_for_timeout(500)


def tools(visit: Visit) -> None:
    visit.page.click("#lsv-settings .toggle-button")
    visit.page.get_by_text("Tools", exact=True).click()
    visit.page.get_by_label("Calculator").check()
    visit.page.get_by_label("Think first").check()
    if visit.page.viewport_size["width"] < 768:
        visit.page.click("#lsv-settings .toggle-button")
    visit.ask("What is 3847 * 29?")
    visit.page.wait_for_timeout(1000)


def dashboard(visit: Visit) -> None:
    visit.tab("Dashboard")
    visit.page.wait_for_timeout(16_000)


def dashboard_begins(visit: Visit) -> None:
    visit.tab("Dashboard")


def transcribe(visit: Visit) -> None:
    visit.tab("Transcribe")


def transcribed(visit: Visit) -> None:
    visit.tab("Transcribe")
    visit.page.set_input_files("#lsv-transcription input[type=file]", visit.media[1])
    visit.page.wait_for_selector("#lsv-transcription #waveform")
    visit.page.get_by_role("button", name="Transcribe").click()
    visit.page.wait_for_timeout(1500)


def rerank(visit: Visit) -> None:
    visit.server.tasks = ("embed", "score")
    visit.page.reload()
    visit.tab("Rerank")
    visit.server.tasks = ("generate",)
    visit.page.get_by_label("Question").fill("Which city is the capital of Portugal?")
    visit.page.get_by_label("Texts, one a line").fill(
        "Lisbon is the capital of Portugal.\nA llama hums when it is curious."
    )
    visit.page.get_by_role("button", name="Rerank").click()
    visit.page.wait_for_selector("#lsv-found li")


def dead(visit: Visit) -> None:
    """The last: the server does not come back."""
    visit.server.stop()
    visit.page.wait_for_selector("#lsv-status .down", timeout=30_000)
    visit.ask("Hello")


VIEWS: tuple[Callable[[Visit], None], ...] = (
    empty, text, attached, media, streaming, thinking, thought, edited, scrolled, broken, refused, history, settings,
    tools, dashboard_begins, dashboard, rerank, transcribe, transcribed, dead,
)  # fmt: skip


@contextmanager
def shown(server: str) -> Iterator[str]:
    """The page in front of a server."""
    options = PageOptions(server=server, port=free_port())
    page = launch(options)
    try:
        yield address(options.host, options.port)
    finally:
        page.close(verbose=False)


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


def open_page(running: Any, url: str, size: str, mode: str, state: Any = None) -> Any:
    width, height = SIZES[size]
    context = running.new_context(
        viewport={"width": width, "height": height}, color_scheme=mode, storage_state=state, has_touch=size == "phone"
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#lsv-status .lsv-pill")
    page.wait_for_timeout(500)
    return page


def take_views(folder: Path, names: list[str]) -> None:
    """Every view, or the named ones, at both sizes in both modes."""
    folder.mkdir(parents=True, exist_ok=True)
    server = StandIn({"senses": ["text", "image", "audio", "video"], "words": ["text"]}, ANSWERS)
    with tempfile.TemporaryDirectory() as place, shown(server.url) as url, browser() as running:
        media = list(make_files(Path(place)).values())
        for view in VIEWS:
            for size, mode in (("desktop", "light"), ("phone", "dark"), ("desktop", "dark"), ("phone", "light")):
                if names and view.__name__ not in names:
                    continue
                page, server.pace = open_page(running, url, size, mode), 0.0
                view(Visit(page, server, media))
                page.screenshot(path=folder / f"{view.__name__}-{size}-{mode}.png")
                page.context.close()
    server.stop()


def take_docs(server: str) -> None:
    """The pictures of the documentation."""
    folder = Path(__file__).resolve().parents[2] / "docs" / "images"
    with tempfile.TemporaryDirectory() as place, shown(server) as url, browser() as running:
        files, page = make_files(Path(place)), open_page(running, url, "desktop", "light")
        for conversation in CONVERSATIONS:
            page.click("#lsv-new")
            page.wait_for_selector(".lsv-greeting")
            for question, kind in conversation:
                converse(page, question, kind, files)
        page.mouse.move(640, 740)
        page.wait_for_timeout(1000)
        page.screenshot(path=folder / "webui-chat.png")
        state = page.context.storage_state()
        with under_load(server):
            page.get_by_role("tab", name="Dashboard").click()
            page.wait_for_timeout(100_000)
            page.screenshot(path=folder / "webui-dashboard.png")
        page.context.close()
        page = open_page(running, url, "phone", "dark", state)
        page.wait_for_selector(".lsv-note")
        page.wait_for_timeout(1000)
        page.screenshot(path=folder / "webui-phone.png")


def converse(page: Any, question: str, kind: str, files: Mapping[str, Path]) -> None:
    if kind:
        if not page.locator(f"#lsv-box input[type=file][accept*={kind}]").count():
            return
        attach(page, [files[kind]])
    ask(page, question)
    page.wait_for_selector("#lsv-box .stop-button", state="detached")
    note(page)
    page.wait_for_timeout(500)


@contextmanager
def under_load(server: str, clients: int = 6) -> Iterator[None]:
    """Clients that ask again and again, with pauses."""
    ended = threading.Event()

    def client(number: int) -> None:
        body = {"messages": [{"role": "user", "content": "Tell me a story."}], "seed": number, "max_tokens": 200}
        while not ended.wait(random.expovariate(2.0)):
            asked = urllib.request.Request(
                f"{server}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(asked, timeout=60) as answer:
                answer.read()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    what, where, *names = sys.argv[1:]
    if what == "views":
        take_views(Path(where), names)
    else:
        take_docs(where)
