"""Every kind of process is stopped or killed in every phase: nothing hangs or stays behind, and service comes back."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lsv_base.processes.folder import PrivateFolder

from .conftest import Server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("breakdowns"),
    pytest.mark.skipif("LSV_PLATFORM" in os.environ, reason="processes break down alike on every platform"),
]

STOP, KILL, CONT = signal.SIGSTOP, signal.SIGKILL, signal.SIGCONT
STEP, LOAD, DRAIN = 3.0, 20.0, 6.0
"""Seconds: the timeouts of a step, of loading and of draining."""
BACK = 10.0
"""Seconds from the end of a process to being ready again, beside what this machine needs for a start just now."""
SLACK = 60.0
"""Seconds that a busy machine may add before something counts as hung."""
MODULES = {
    "engine": b"lsv.engine.main",
    "rank": b"lsv_runtime.worker.remote",
    "media": b"lsv_multimodal.worker.main",
    "page": b"lsv_webui.page",
}


class Site:
    """A server, its processes, and requests to it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._mark = f"XDG_BREAKDOWN={uuid.uuid4().hex}"  # a name that confined processes keep
        monkeypatch.setenv(*self._mark.split("="))
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        monkeypatch.setattr("tempfile.tempdir", None)
        self._shared = set(os.listdir("/dev/shm"))
        self.server = Server(
            folder / "server.log", "lsv-demo", "--restart-engine", "--step-timeout", str(STEP),
            "--load-timeout", str(LOAD), "--drain-timeout", str(DRAIN), "--media-timeout", "3", *arguments,
        )  # fmt: skip
        self.threads: list[threading.Thread] = []
        self.outcomes: list[str] = []

    def pids(self, kind: str | None = None) -> list[int]:
        """The processes of a kind, or all but zombies, in the order they were started in."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                ours = self._mark.encode() in (entry / "environ").read_bytes()
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if ours and words != [b""] and int(entry.name) != os.getpid() and (kind is None or MODULES[kind] in words):
                found.append(int(entry.name))
        return sorted(found)

    def signal(self, kind: str, number: signal.Signals) -> None:
        """To the last process of a kind."""
        pid = self.server.process.pid if kind == "server" else self.pids(kind)[-1]
        os.kill(pid, number)

    def ask(self, prompt: str = "Mira", tokens: int = 5, **body: Any) -> str:
        """The text of an answer, or the code of its error."""
        asked = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **body}
        return self._post("/v1/completions", asked, lambda answer: answer["choices"][0]["text"])

    def show(self) -> str:
        """The answer to a picture nobody has seen before, or the code of its error."""
        file = io.BytesIO()
        Image.fromarray(np.random.default_rng().integers(0, 255, (64, 64, 3), np.uint8)).save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
        body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 5}
        return self._post("/v1/chat/completions", body, lambda answer: answer["choices"][0]["message"]["content"])

    def begin(self, *prompts: str, tokens: int = 5, **body: Any) -> None:
        """Ask in threads; what comes of it is in ``outcomes`` once ``wait_for_answers`` returns."""
        for prompt in prompts:
            thread = threading.Thread(
                target=lambda prompt=prompt: self.outcomes.append(self.ask(prompt, tokens, **body))
            )
            thread.start()
            self.threads.append(thread)

    def wait_for_answers(self, seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), f"a request hangs:\n{self.server.log.read_text()[-4000:]}"
        return self.outcomes

    def metric(self, name: str) -> float:
        lines = self.server.get("/metrics")[1].decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"vllm:{name}{{")).rpartition(" ")[2])

    def check_health(self) -> None:
        """Service is as it was: an answer, and nothing left of what was running."""
        assert self.ask() == self.expected
        wait_for(lambda: self.metric("num_requests_running") == self.metric("num_requests_waiting") == 0)
        wait_for(lambda: self.metric("gpu_cache_usage_perc") == 0)

    expected = ""
    start_seconds = 0.0

    def learn(self) -> None:
        """Wait for the first start, and remember what is expected of the next one."""
        began = time.monotonic()
        self.server.wait_until_ready()
        self.start_seconds = time.monotonic() - began
        self.expected = self.ask()

    def check_remains(self) -> None:
        """The server has ended: no process, port, folder or shared memory is left."""
        wait_for(lambda: not self.pids())
        with socket.create_server(("127.0.0.1", self.server.port)):
            pass
        PrivateFolder().remove()  # what killed processes leave goes with the next one
        assert not list(self.temporary.glob("lsv-run-*"))
        assert not {name for name in set(os.listdir("/dev/shm")) - self._shared if name.startswith(("lsv", "torch_"))}

    def end(self) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, KILL)
        self.server.process.wait()
        for thread in self.threads:
            thread.join(SLACK)

    def _post(self, path: str, body: dict[str, Any], read: Callable[[Any], str]) -> str:
        request = urllib.request.Request(
            self.server.url + path, json.dumps({"model": "lsv-demo", **body}).encode(),
            {"content-type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                text = response.read()
        except urllib.error.HTTPError as refusal:
            return f"{refusal.code} {json.loads(refusal.read())['error']['code']}"
        except (OSError, HTTPException) as error:
            return f"cut off: {error}"
        if not body.get("stream"):
            return read(json.loads(text))
        events = [line.removeprefix(b"data: ") for line in text.split(b"\n\n") if line]
        assert events[-1] == b"[DONE]"
        last = json.loads(events[-2])
        return str(last["error"]["code"]) if "error" in last else "whole"


def wait_for(true: Callable[[], bool], seconds: float = SLACK) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


Make = Callable[..., Site]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Site] = []

    def make_site(*arguments: str) -> Site:
        made.append(Site(tmp_path, monkeypatch, *arguments))
        return made[-1]

    yield make_site
    for site in made:
        site.end()


def enter(site: Site, phase: str) -> None:
    """Bring a server that is ready into a phase of its work."""
    if phase == "prefill":
        site.begin(*(f"{number} " + "word " * 400 for number in range(12)))
        wait_for(lambda: site.metric("num_requests_running") > 0 or not all(t.is_alive() for t in site.threads))
    if phase in ("decode", "draining"):
        site.begin("Mira", tokens=1900, stream=True)
        site.begin("Mira", "The", tokens=1900)
        wait_for(lambda: site.metric("num_requests_running") == 3)
    if phase == "draining":
        site.server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: json.loads(site.server.get("/health")[1])["status"] == "draining")


@pytest.mark.parametrize("phase", ["idle", "prefill", "decode"])
@pytest.mark.parametrize("number", [KILL, STOP], ids=["kill", "stop"])
@pytest.mark.parametrize("kind", ["engine", "rank"])
def test_what_computes_breaks_down(make: Make, kind: str, number: signal.Signals, phase: str) -> None:
    site = make(*(("-tp", "2") if kind == "rank" else ()))
    site.learn()
    engine = site.pids("engine")
    enter(site, phase)
    site.signal(kind, number)
    began, seen = time.monotonic(), 3 * STEP if number is STOP else 2.0
    wait_for(lambda: site.server.get("/health")[0] == 503, seen + SLACK)
    health = json.loads(site.server.get("/health")[1])
    if health["status"] != "ready":
        assert health["models"][0]["error"] or health["models"][0]["silent"], "it says why"
    for outcome in site.wait_for_answers(seen + SLACK):
        assert outcome in ("503 engine_died", "engine_died", "whole") or outcome[0] != "5", outcome
    if phase == "decode":
        assert sorted(site.outcomes) == ["503 engine_died"] * 2 + ["engine_died"]
    site.server.wait_until_ready(seen + BACK + site.start_seconds + SLACK)
    print(f"{kind} {number.name} {phase}: ready again after {time.monotonic() - began:.1f} s")
    assert site.pids("engine") != engine
    site.check_health()
    assert site.server.stop() == 0
    site.check_remains()


_HANGING = """
import time
from pathlib import Path

from lsv import hookimpl
from lsv.offers import KernelOffer
from lsv_runtime.ops import Kernel

api = 2


class Hanging(Kernel):
    def __init__(self, module, spec):
        self._module = module

    def forward(self, *arguments):
        if Path({flag!r}).exists():
            time.sleep(3600)
        return self._module.reference(*arguments)


@hookimpl
def lsv_kernels():
    yield KernelOffer("sample", "cpu", "lsv_hanging:Hanging", lambda spec: None, rank=100)
"""


@pytest.mark.row("F-120")
def test_a_step_that_hangs_on_the_only_device_ends(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag, folder = tmp_path / "hang", tmp_path / "site"
    info = folder / "lsv_hanging-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lsv-hanging\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[lsv]\nhanging = lsv_hanging\n")
    (folder / "lsv_hanging.py").write_text(_HANGING.format(flag=str(flag)))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    site = make()
    site.learn()
    engine = site.pids("engine")
    flag.touch()
    site.begin("Mira", tokens=50)
    wait_for(lambda: site.server.get("/health")[0] == 503, 3 * STEP + SLACK)
    flag.unlink()
    assert site.wait_for_answers(SLACK) == ["503 engine_died"]
    site.server.wait_until_ready(BACK + site.start_seconds + SLACK)
    assert site.pids("engine") != engine
    assert "hangs while serving" in site.server.log.read_text()
    site.check_health()
    assert site.server.stop() == 0
    site.check_remains()


@pytest.mark.parametrize("number", [KILL, STOP], ids=["kill", "stop"])
@pytest.mark.parametrize("kind", ["engine", "rank"])
def test_what_computes_breaks_down_while_it_loads(make: Make, kind: str, number: signal.Signals) -> None:
    site = make(*(("-tp", "2") if kind == "rank" else ()))
    wait_for(lambda: bool(site.pids(kind)))
    wait_for(lambda: b"loading" in _get(site, "/health"))
    site.signal(kind, number)
    assert site.ask().startswith("503"), "nobody waits for a model that is loading"
    site.server.wait_until_ready(BACK + SLACK + (LOAD if number is STOP else 0.0))
    site.expected = site.ask()
    site.check_health()
    assert site.server.stop() == 0
    site.check_remains()


@pytest.mark.parametrize("number", [KILL, STOP], ids=["kill", "stop"])
@pytest.mark.parametrize("kind", ["engine", "rank"])
def test_what_computes_breaks_down_while_the_server_drains(make: Make, kind: str, number: signal.Signals) -> None:
    site = make(*(("-tp", "2") if kind == "rank" else ()))
    site.learn()
    enter(site, "draining")
    site.signal(kind, number)
    site.wait_for_answers(DRAIN + SLACK)
    site.server.process.wait(DRAIN + SLACK)
    site.check_remains()


@pytest.mark.parametrize("phase", ["loading", "idle", "prefill", "decode", "draining"])
def test_the_server_is_killed(make: Make, phase: str) -> None:
    site = make("-tp", "2")
    if phase == "loading":
        wait_for(lambda: len(site.pids("rank")) == 2)
    else:
        site.learn()
        enter(site, phase)
    site.signal("server", KILL)
    site.wait_for_answers(SLACK)
    site.check_remains()


def test_a_server_that_was_held_up_goes_on(make: Make) -> None:
    """Its engine is not blamed for what the server has not read."""
    site = make()
    site.learn()
    engine = site.pids("engine")
    enter(site, "decode")
    site.signal("server", STOP)
    time.sleep(3 * STEP)
    site.signal("server", CONT)
    assert "whole" in site.wait_for_answers(3 * SLACK)
    assert not [outcome for outcome in site.outcomes if outcome.startswith(("5", "cut off"))]
    assert site.pids("engine") == engine
    site.check_health()
    assert site.server.stop() == 0
    site.check_remains()


@pytest.mark.parametrize("number", [KILL, STOP], ids=["kill", "stop"])
def test_what_prepares_media_breaks_down(make: Make, number: signal.Signals) -> None:
    site = make()
    site.learn()
    assert not site.show().startswith("400")
    site.signal("media", number)
    began = time.monotonic()
    first = site.show()
    assert time.monotonic() - began < 3 + SLACK
    assert number is KILL or first.startswith("400")
    assert not site.show().startswith("400")
    site.check_health()
    assert site.server.stop() == 0
    site.check_remains()


@pytest.mark.parametrize("number", [KILL, STOP], ids=["kill", "stop"])
def test_the_web_page_breaks_down(make: Make, number: signal.Signals) -> None:
    pytest.importorskip("gradio")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    site = make("--webui", "--webui-port", str(port))
    site.learn()
    wait_for(lambda: "web page is on" in site.server.log.read_text(), 3 * SLACK)
    site.signal("page", number)
    site.check_health()
    assert site.server.stop() == 0
    site.check_remains()


def _get(site: Site, path: str) -> bytes:
    try:
        return site.server.get(path)[1]
    except OSError:
        return b""
