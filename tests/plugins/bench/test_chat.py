"""``lsv chat`` and ``lsv complete`` as a user types them, against a small server in a thread."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lsv.cli import main
from lsv_base.processes.ports import free_port
from suite.terminal import Terminal

GREETING = [{"role": "assistant", "content": ""}, {"content": "Hello "}, {"content": "you."}]
CALL = {"index": 0, "id": "a", "function": {"name": "look_up", "arguments": '{"word": '}}


class Talker(BaseHTTPRequestHandler):
    """Answers every chat with ``deltas`` and every prompt with two words. Keeps what it was asked."""

    asked: list[dict[str, Any]] = []
    deltas: list[dict[str, Any]] = []
    ending = "data: [DONE]\n\n"
    page: tuple[int, bytes] | None = None

    def do_GET(self) -> None:
        self.reply(200, b'{"data": [{"id": "small"}]}' if self.path == "/v1/models" else b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"path": self.path, "key": self.headers["Authorization"], **body})
        if self.page:
            return self.reply(*self.page)
        choices = [{"text": "two words"}] if "prompt" in body else [{"delta": delta} for delta in self.deltas]
        lines = [json.dumps({"choices": [choice]}) for choice in choices]
        return self.reply(200, "".join((*(f"data: {line}\n\n" for line in lines), self.ending)).encode())

    def reply(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Talker, "asked", [])
    monkeypatch.setattr(
        Talker, "deltas", [{"role": "assistant", "content": ""}, {"content": "Hello "}, {"content": "you."}]
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Talker) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.005})
        thread.start()
        yield f"127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines that are typed into the terminal, which then ends."""
    lines: list[str] = []

    def read(prompt: str = "") -> str:
        if not lines:
            raise EOFError
        return lines.pop(0)

    monkeypatch.setattr("builtins.input", read)
    return lines


@pytest.mark.parametrize("flag", ["--api", "--url", "--base-url"])
@pytest.mark.parametrize("form", ["{}", "http://{}", "http://{}/v1", "http://{}/v1/"])
def test_the_address_goes_by_one_name_in_any_form(
    server: str, flag: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["chat", flag, form.format(server), "-Q", "Hi"]) == 0
    assert capsys.readouterr().out == "Hello you.\n"
    assert [(asked["path"], asked["key"]) for asked in Talker.asked] == [("/v1/chat/completions", None)]


def test_an_address_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["complete", "--api", "ftp://here", "-Q", "Hi"]) == 2
    assert "--api must be an http or https address" in capsys.readouterr().err


@pytest.mark.row("F-319", "F-1011")
def test_nothing_but_the_answer_is_printed(
    server: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("httpx2").setLevel(logging.NOTSET)
    with caplog.at_level(logging.INFO):
        assert main.main(["chat", "--api", server, "-Q", "Hi"]) == 0
        assert main.main(["complete", "--api", server, "-Q", "Hi"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("Hello you.\ntwo words\n", "")
    assert [record.message for record in caplog.records if record.name.startswith("httpx")] == []


@pytest.mark.row("F-319", "F-1011")
def test_a_conversation_is_kept_without_its_thinking(
    server: str, typed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    thought = [{"reasoning_content": "A greet"}, {"reasoning_content": "ing."}, {"content": "Hello"}]
    monkeypatch.setattr(Talker, "deltas", thought)
    typed += ["Hi", "And you?"]
    assert main.main(["chat", "--api", server, "--system-prompt", "Be brief."]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("Hello\nHello\n", "A greeting.\nA greeting.\n")
    roles = [(message["role"], message["content"]) for message in Talker.asked[-1]["messages"]]
    assert roles == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "And you?")]


def test_tool_calls_are_shown_and_their_question_is_not_sent_again(
    server: str, typed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = {"index": 0, "function": {"arguments": '"cat"}'}}
    monkeypatch.setattr(Talker, "deltas", [{"tool_calls": [CALL]}, {"tool_calls": [rest]}])
    typed += ["What is a cat?", "Well?"]
    assert main.main(["chat", "--api", server]) == 0
    assert capsys.readouterr().err == 'calls look_up {"word": "cat"}\n' * 2
    assert [message["content"] for message in Talker.asked[-1]["messages"]] == ["Well?"]


@pytest.mark.parametrize("ending", ["", 'data: {"choi'])
def test_a_cut_answer_a_proxy_and_a_dead_server_are_told_apart(
    server: str, ending: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Talker, "ending", ending)
    assert main.main(["chat", "--api", server, "-Q", "Hi"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("Hello you.")
    assert "the connection to the server broke off before the answer was complete" in captured.err
    monkeypatch.setattr(Talker, "page", (502, b"<html><h1>502 Bad Gateway</h1>nginx</html>"))
    assert main.main(["chat", "--api", server, "-Q", "Hi"]) == 1
    err = capsys.readouterr().err
    assert "the server answered 502: Bad Gateway; a proxy before it can't reach it" in err
    assert "nginx" not in err
    assert main.main(["chat", "--api", f"127.0.0.1:{free_port()}", "-Q", "Hi"]) == 1
    assert "no server answers at" in capsys.readouterr().err


@pytest.mark.parametrize("question", [["-Q", "Hi"], ["-p", "Hi"], ["--prompt", "Hi"], ["Hi"]])
def test_a_question_may_stand_in_the_command(
    server: str, question: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["chat", "--api", server, *question]) == 0
    assert main.main(["complete", "--api", server, *question]) == 0
    assert capsys.readouterr().out == "Hello you.\ntwo words\n"


@pytest.mark.usefixtures("typed")
@pytest.mark.parametrize("command", ["chat", "complete"])
def test_an_empty_pipe_asks_nothing(server: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([command, "--api", server]) == 2
    assert "there is no question" in capsys.readouterr().err
    assert Talker.asked == []


def test_ctrl_c_stops_an_answer_and_keeps_the_conversation(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def answer_slowly(talker: Talker) -> None:
        body = json.loads(talker.rfile.read(int(talker.headers["Content-Length"])))
        Talker.asked.append(body)
        talker.send_response(200)
        talker.end_headers()
        talker.wfile.write(b'data: {"choices": [{"delta": {"content": "Once upon"}}]}\n\n')
        go_on.wait(30)
        talker.wfile.write(b'data: {"choices": [{"delta": {"content": " a time"}}]}\n\ndata: [DONE]\n\n')

    monkeypatch.setattr(Talker, "do_POST", answer_slowly)
    with Terminal(["chat", "--api", server], {"LSV_CACHE_ROOT": str(tmp_path)}) as terminal:
        terminal.wait_for(">")
        terminal.type("Tell me a story\r")
        terminal.wait_for("Once upon")
        terminal.type("\x03")
        terminal.wait_for(">")
        go_on.set()
        terminal.type("Go on\r")
        terminal.wait_for("a time")
        terminal.wait_for(">")
        terminal.type("\x04")
        assert terminal.end() == 0
    said = [message["content"] for message in Talker.asked[-1]["messages"]]
    assert said == ["Tell me a story", "Once upon", "Go on"]


@pytest.mark.row("F-1011")
def test_a_completion_refuses_a_system_prompt(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["complete", "--api", server, "--system-prompt", "Be brief.", "-Q", "Hi"]) == 2
    assert "a prompt has no system message" in capsys.readouterr().err
    assert main.main(["complete", "--api", server, "-Q", "Hi"]) == 0
    assert Talker.asked[-1]["prompt"] == "Hi"
