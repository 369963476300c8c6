"""Launch lines of the predecessors' documents start, and their requests are answered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from suite.libraries import MINERU, link_packages, site_packages
from suite.server import Server

from .lines import AS_IT_STANDS, LINES, WITH_THE_FLAG, Line, read
from .site import Site

KEY = "token-abc123"
SECONDS = 600.0


class Run:
    """A launch line under way."""

    def __init__(self, line: Line, site: Site, log: Path, *more: str) -> None:
        self.line, self.site = line, site
        variables, arguments = read(line.words, str(site.models))
        self.environment = {**site.variables(), **variables}
        self.arguments = [*arguments, *more]
        if line.card:
            self.arguments += [*([] if "--device=xpu" in arguments else ["--platform", line.card]), "--emulate"]
        self.server = Server(log, *self.arguments, variables=self.environment)

    def __enter__(self) -> Run:
        try:
            self.server.wait_until_ready(SECONDS)
        except BaseException:
            self.server.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    @property
    def client(self) -> openai.OpenAI:
        return self.server.client(**({"api_key": KEY} if KEY in self.arguments else {}), timeout=SECONDS)

    @property
    def model(self) -> str:
        return self.client.models.list().data[0].id

    def chat(self, *content: Any, **options: Any) -> None:
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *content]}]
        found = self.client.chat.completions.create(model=self.model, messages=messages, max_tokens=8, **options)
        assert found.usage is not None
        assert found.usage.completion_tokens > 0


def _embed(run: Run) -> None:
    found = run.client.embeddings.create(model=run.model, input=["the first text", "another"], encoding_format="float")
    assert [len(each.embedding) for each in found.data] == [64, 64]


def _rerank(run: Run) -> None:
    body = {"model": run.model, "query": "Which capital?", "documents": ["Brasilia.", "Paris.", "Horses."]}
    found: Any = run.client.post("/rerank", cast_to=object, body=body)
    scores = [each["relevance_score"] for each in found["results"]]
    assert sorted(scores, reverse=True) == scores
    assert len({each["index"] for each in found["results"]}) == 3


def _transcribe(run: Run) -> None:
    with (run.site.web / "sound.wav").open("rb") as file:
        found = run.client.audio.transcriptions.create(model=run.model, file=file)
    assert isinstance(found.text, str)


def _bench(run: Run) -> None:
    """The load generator's own line, against the server."""
    words = [
        "bench", "serve", "--model", str(run.site.models / "DeepSeek-R1-Distill-Qwen-7B"), "--dataset-name", "random",
        "--served-model-name", "DeepSeek-R1-Distill-Qwen-7B", "--random-input-len=1024", "--random-output-len=16",
        "--ignore-eos", "--num-prompt", "10", "--trust_remote_code", "--request-rate", "inf", "--backend", "vllm",
        f"--port={run.server.port}",
    ]  # fmt: skip
    found = subprocess.run([sys.executable, "-m", "lsv", *words], capture_output=True, text=True, timeout=SECONDS)
    assert found.returncode == 0, found.stderr
    figures = dict(line.split("\t")[:2] for line in found.stdout.splitlines() if "\t" in line)
    assert (figures["requests"], figures["errors"]) == ("10", "0"), found.stdout


def _profile(run: Run) -> None:
    run.client.post("/../start_profile", cast_to=object, body={})
    run.chat()
    run.client.post("/../stop_profile", cast_to=object, body={})
    assert list((run.site.models / "traces").iterdir())


def _tools(run: Run) -> None:
    function = {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}}
    run.chat(tools=[{"type": "function", "function": function}], tool_choice="auto")


def _picture(run: Run) -> None:
    run.chat({"type": "image_url", "image_url": {"url": run.site.url("picture.png")}})


def _picture_and_sound(run: Run) -> None:
    run.chat(
        {"type": "image_url", "image_url": {"url": run.site.url("picture.png")}},
        {"type": "audio_url", "audio_url": {"url": run.site.url("sound.wav")}},
    )


REQUESTS: dict[str, Callable[[Run], None]] = {
    "chat": Run.chat, "embed": _embed, "rerank": _rerank, "transcribe": _transcribe, "bench": _bench,
    "profile": _profile, "tools": _tools, "picture": _picture, "picture and sound": _picture_and_sound,
}  # fmt: skip


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_a_line_of_the_documents_answers(
    line: Line, site: Site, log: Path, record_property: Any, request: pytest.FixtureRequest
) -> None:
    record_property("line", line.name)
    site.provide(line.model, line.checkpoint)
    prepare = {"002 INC, fp8_inc": _measure, "004 draft model server": _provide_draft}.get(line.name)
    changed = prepare(line, site, log) if prepare else line
    if "ray" in line.words.split():
        request.getfixturevalue("ray_head")
    if "mineru_vl_utils" in line.words:
        request.getfixturevalue("mineru")
    with Run(changed, site, log) as run:
        flag = _find_flag(lambda: REQUESTS[line.request](run))
    if flag:
        with Run(changed, site, log, *flag) as run:
            REQUESTS[line.request](run)
    record_property("answered", f"{WITH_THE_FLAG}: {' '.join(flag)}" if flag else AS_IT_STANDS)


def _find_flag(ask: Callable[[], None]) -> list[str]:
    """The flag that the error of a request names; nothing if it is answered."""
    try:
        ask()
    except openai.BadRequestError as refusal:
        found = re.search(r"--allowed-media-domains [\w.]+\w", str(refusal))
        if found is None:
            raise
        return found[0].split()
    return []


def _measure(line: Line, site: Site, log: Path) -> Line:
    """Measure the scales that the line's QUANT_CONFIG reads."""
    file, stats = log.parent / "quant.json", str(log.parent / "stats")
    file.write_text(json.dumps({"mode": "MEASURE", "dump_stats_path": stats}))
    words = line.words.replace("--kv-cache-dtype fp8_inc ", "")
    measuring = line._replace(words=f"QUANT_CONFIG={file} VLLM_SKIP_WARMUP=true {words}")
    with Run(measuring, site, log) as run:
        run.chat()
    file.write_text(json.dumps({"mode": "QUANTIZE", "dump_stats_path": stats}))
    return line._replace(words=f"QUANT_CONFIG={file} VLLM_SKIP_WARMUP=true {line.words}")


def _provide_draft(line: Line, site: Site, log: Path) -> Line:
    site.provide("facebook/opt-125m", "opt")
    return line


@pytest.fixture
def mineru(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package for every process, without one that is called vllm."""
    monkeypatch.setenv("PYTHONPATH", str(link_packages(MINERU, tmp_path / "packages")))


@pytest.fixture
def ray_head(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``ray start`` of the document's step 5, with two machines in one."""
    packages = str(site_packages())
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setenv("PYTHONPATH", packages)
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    made.add_node(num_cpus=2)
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield
    made.shutdown()
