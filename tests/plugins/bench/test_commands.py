"""``lsv bench`` as a user types it, against a small server in a thread."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lsv.cli import main
from lsv.cli.context import CommandContext, choose_plugins
from lsv_base.processes.ports import free_port
from lsv_bench.commands import startup
from lsv_bench.commands.startup import as_arguments
from lsv_testing.plugins import plugins_of


class Model(BaseHTTPRequestHandler):
    """Answers with two tokens; prompts of 50 tokens and more are too long. Keeps what it was asked."""

    asked: list[dict[str, Any]] = []

    def do_GET(self) -> None:
        self.reply(200, b'{"data": [{"id": "small"}]}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        self.asked.append({"path": self.path, "key": self.headers["Authorization"], **body})
        if len(body.get("prompt", "")) >= 50:
            self.reply(400, b'{"error": {"message": "too long"}}')
            return
        events = [
            {"choices": [{"text": "a", "delta": {"content": "a"}}]},
            {"choices": [{"text": "b", "delta": {"content": "b"}, "finish_reason": "length"}]},
            {"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 2}},
        ]
        self.reply(200, b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events))

    def reply(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(Model, "asked", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Model) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.005})
        thread.start()
        yield str(server.server_port)
        server.shutdown()
        thread.join()


SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Small(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply(b'{"data": [{"id": "small"}]}')

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(b'data: {"choices": [{"text": "a"}]}' + bytes((10,)))

    def reply(self, data):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

print("started with", *sys.argv[1:], flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[-1])), Small).serve_forever()
"""


def bench(*arguments: str) -> int:
    return main.main(["bench", *arguments])


@pytest.mark.row("F-315", "F-879")
def test_serve_writes_table_json_and_plot(port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, page = tmp_path / "r.json", tmp_path / "r.html"
    code = bench(
        "serve", "--port", port, "--input-len", "8", "--num-prompts", "4", "--num-warmups", "2", "--repeats", "2",
        "--goodput", "ttft:60000", "tpot:60000", "--metadata", "note=x", "--metric-percentiles", "50,95",
        "--percentile-metrics", "ttft,e2el", "--api-key", "sk-secret", "--output", str(output), "--plot", str(page),
    )  # fmt: skip
    assert code == 0
    assert "medians of 2 repeats" in capsys.readouterr().out
    saved = json.loads(output.read_text())
    assert (saved["kind"], saved["metadata"], len(saved["runs"])) == ("serve", {"note": "x"}, 2)
    figures = saved["runs"][0]["figures"]
    assert (figures["requests"], figures["output_tokens"], figures["good_percent"]) == (4, 8, 100)
    assert {name for name in figures if name.endswith("_ms")} == {
        f"{metric}_{statistic}_ms" for metric in ("ttft", "e2el") for statistic in ("mean", "p50", "p95")
    }
    assert "sk-secret" not in output.read_text() + page.read_text()
    assert {asked["key"] for asked in Model.asked} == {"Bearer sk-secret"}
    prompts = [tuple(asked["prompt"]) for asked in Model.asked]
    assert len(prompts) == len(set(prompts)) == 2 * (2 + 4), "a prompt came twice and may have been cached"


@pytest.mark.row("F-878", "F-879", "F-865")
def test_the_server_is_profiled_meanwhile(port: str) -> None:
    assert (
        bench("serve", "--port", port, "--num-prompts", "2", "--num-warmups", "1", "--profile", "--input-len", "8") == 0
    )
    assert [asked["path"] for asked in Model.asked] == [
        "/v1/completions", "/start_profile", *["/v1/completions"] * 2, "/stop_profile",
    ]  # fmt: skip


def test_serve_speaks_chat(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("serve", "--port", port, "--num-prompts", "2", "--backend", "openai-chat", "--input-len", "9") == 0
    assert {asked["path"] for asked in Model.asked} == {"/v1/chat/completions"}
    assert all(len(asked["messages"][0]["content"].split()) == 9 for asked in Model.asked)


def test_failed_requests_are_counted_and_shown(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("serve", "--port", port, "--num-prompts", "3", "--input-len", "99") == 1
    assert "3 × error: the server answered 400: too long" in capsys.readouterr().out


@pytest.mark.row("F-887")
def test_a_sweep_starts_a_server_for_each_suite(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script, free = tmp_path / "server.py", str(free_port())
    script.write_text(SERVER)
    command = f"{sys.executable} {script} --image small --port {free}"
    code = bench("sweep", "serve", "--serve-cmd", command, "--port", free, "--show-stdout", "--type",
                 "rate,concurrency", "--num-prompts", "1", "--input-len", "8")  # fmt: skip
    assert code == 0
    assert capfd.readouterr().err.count(f"started with --image small --port {free}") == 2


@pytest.mark.row("F-887")
def test_a_sweep_goes_on_after_a_point_that_fails(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.json"
    code = bench("sweep", "--port", port, "--suite", "input", "--values", "8,64,16", "--num-prompts", "2",
                 "--output", str(file), "--plot", str(tmp_path / "s.html"))  # fmt: skip
    assert code == 0
    saved = json.loads(file.read_text())
    assert saved["kind"] == "sweep-serve"
    assert saved["command"].startswith("lsv bench sweep serve --port")
    assert [(run["point"]["random_input_len"], bool(run["figures"])) for run in saved["runs"]] == [
        (8, True), (64, False), (16, True),
    ]  # fmt: skip
    assert "error at random_input_len=64" in capsys.readouterr().out
    assert (tmp_path / "s.html").exists()


@pytest.mark.row("F-316", "F-888")
def test_a_sweep_takes_another_benchmarks_command(
    port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, points = tmp_path / "s.json", tmp_path / "points.json"
    points.write_text(json.dumps([{"request_rate": 50}, {"request_rate": "inf", "num_prompts": 3}]))
    code = bench("sweep", "serve", "--bench-cmd", f"vllm bench serve --port {port} --num-prompts 2 --input-len 9",
                 "--bench-params", str(points), "--input-len", "8", "--output", str(file))  # fmt: skip
    assert code == 0
    assert len(Model.asked) == 2 + 3
    assert {len(asked["prompt"]) for asked in Model.asked} == {8}, "what stands outside the command is stronger"
    assert [run["point"] for run in json.loads(file.read_text())["runs"]] == [
        {"request_rate": "50"}, {"request_rate": "inf", "num_prompts": 3}
    ]  # fmt: skip
    assert bench("sweep", "--bench-cmd", "vllm bench latency") == 2
    assert "bench-cmd must be like" in capsys.readouterr().err


@pytest.mark.row("F-314", "F-315")
@pytest.mark.parametrize("name", [["--dataset-name", "sharegpt"], []])
@pytest.mark.parametrize("flag", ["--dataset", "--dataset-path"])
def test_a_file_of_conversations_needs_no_name(port: str, tmp_path: Path, name: list[str], flag: str) -> None:
    file = tmp_path / "conversations.json"
    turns = [{"from": "human", "value": "How are you today, my friend?"}, {"from": "gpt", "value": "Fine, and you?"}]
    file.write_text(json.dumps([{"conversations": turns}] * 4))
    assert bench("serve", "--port", port, "--model", "small", flag, str(file), *name, "--num-prompts", "2") == 0
    assert {asked["prompt"] for asked in Model.asked} == {"How are you today, my friend?"}


def test_two_files_compare(port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for file, count in zip(files, ("2", "4"), strict=True):
        assert bench("serve", "--port", port, "--num-prompts", count, "--input-len", "8", "--output", file) == 0
    capsys.readouterr()
    assert bench("compare", *files, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["figure"]: row for row in found["rows"]}
    assert rows["output_tokens"]["ratio"] == 2
    assert [one["what"] for one in found["differences"]] == ["num_prompts"]
    assert bench("compare", files[0]) == 2
    assert "takes two files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("", "lsv bench takes one of latency"),
        ("serv", "did you mean serve?"),
        ("serve --request-rate 0", "request_rate must be"),
        ("serve --metric-percentiles 101", "metric-percentiles must be"),
        ("serve --percentile-metrics ttft,xyz", "got 'xyz'"),
        ("serve --goodput speed:3", "goodput must be"),
        ("serve --metadata note", "KEY=VALUE"),
        ("serve --plot x.pdf", "ends in .html or .png"),
        ("serve --dataset-name sharegpt", "--dataset-path"),
        ("serve --extra-body [1]", "JSON object"),
        ("sweep --suite speed", "suite must be any of rate"),
        ("sweep --values 1,2", "values are for one suite"),
        ("sweep --suite input --bench-params x.json", "not both"),
        ("sweep latency --suite rate", "needs a server"),
        ("compare a.json b.json", "a.json can't be read"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    arguments: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments.split()) == 2
    assert why in capsys.readouterr().err


def test_help_lists_the_kinds_and_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--help") == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {kind} " in printed for kind in ("latency", "throughput", "serve", "sweep", "startup", "compare"))
    assert bench("sweep", "--help") == 0
    assert "usage: lsv bench sweep" in capsys.readouterr().out


def test_a_start_gets_the_flags_that_were_given_here() -> None:
    context = CommandContext(plugins_of(), choose_plugins([]))
    arguments = ["m", "--dtype", "bfloat16", "--no-enable-prefix-caching", "--api-key", "a", "b", "--port", "1",
                 "--hf-overrides", '{"x": 1}', "--cold", "--max-model-len", "8k"]  # fmt: skip
    settings = context.settings(arguments, scope="serve", extra=startup.SETTINGS)
    leave = frozenset(setting.name for setting in startup.SETTINGS) | {"port"}
    assert sorted(as_arguments(settings, leave=leave)) == sorted([
        "--model=m", "--dtype=bfloat16", "--enable-prefix-caching=false", "--api-key=a,b", '--hf-overrides={"x": 1}',
        "--max-model-len=8000",
    ])  # fmt: skip


def test_starts_are_warm_after_a_warm_up_and_cold_in_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[str] = []
    monkeypatch.setattr(startup, "drop_from_page_cache", lambda folder: events.append("drop"))

    def start(flags: list[str], **rest: Any) -> dict[str, float]:
        events.append("start")
        return {"ready_s": 1.5, "stage_weights_s": 1.0}

    monkeypatch.setattr(startup, "measure_start", start)
    file = tmp_path / "s.json"
    assert bench("startup", "--cold", "--repeats", "2", "--output", str(file)) == 0
    assert events == ["start", "drop", "start", "start", "drop", "start", "start"]
    runs = json.loads(file.read_text())["runs"]
    assert [run["point"]["start"] for run in runs] == ["cold", "warm", "cold", "warm"]
