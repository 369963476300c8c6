"""Conversations in a terminal: commands, Ctrl-C, files, and questions from a pipe."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from lsv.cli import conversation as conversations
from lsv.cli import main
from lsv.cli.conversation import Conversation, Message, converse
from lsv.engine.engine import Engine
from lsv.request.params import SamplingParams
from lsv.scheduler.policy import Fcfs
from lsv_base.errors import ConfigError, Unavailable
from lsv_offline.llm import LLM
from lsv_offline.run import answerer
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.text import letters
from suite.caches import own_cache
from suite.terminal import Terminal

asked: list[list[Message]] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    asked.clear()


def echo(messages: list[Message]) -> Generator[str]:
    asked.append(messages)
    yield from messages[-1]["content"].split()


def stopped(messages: list[Message]) -> Generator[str]:
    asked.append(messages)
    yield "half "
    raise KeyboardInterrupt


def failing(messages: list[Message]) -> Generator[str]:
    asked.append(messages)
    raise Unavailable("the server left")
    yield


def typing(*lines: str | type[BaseException]) -> Callable[[], str]:
    """Reads these lines, and then the end."""
    rest = list(lines)

    def read() -> str:
        line = rest.pop(0) if rest else EOFError
        if isinstance(line, str):
            return line
        raise line

    return read


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "is_interactive", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_an_answer_that_is_stopped_stays_in_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    assert converse(Conversation(stopped), typing("one", "two")) == 0
    assert capsys.readouterr().out == "half \nhalf \n"
    assert [message["content"] for message in asked[1]] == ["one", "half ", "two"]


@pytest.mark.usefixtures("terminal")
def test_commands_begin_with_a_slash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("the notes\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    lines = (
        "/help", "/system Be brief.", "one", "/clear", f"/file {tmp_path}/notes.txt", "two", "/system", "three",
        f"/file {tmp_path}/none", f"/file {tmp_path}/bytes", "/nonsense", " /etc/hosts?", "/bye", "never",
    )  # fmt: skip
    assert converse(Conversation(echo), typing(*lines)) == 0
    assert asked[0] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    assert [message["content"] for message in asked[1]] == ["Be brief.", "notes.txt:\n```\nthe notes\n```\n\ntwo"]
    assert "system" not in [message["role"] for message in asked[2]]
    assert asked[-1][-1]["content"] == "/etc/hosts?"
    said = capsys.readouterr().err
    for words in ("/clear", "No such file", "not UTF-8 text", "there is no command /nonsense"):
        assert words in said


@pytest.mark.usefixtures("terminal")
def test_a_failure_does_not_end_a_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    assert converse(Conversation(failing), typing("one", "two")) == 0
    assert capsys.readouterr().err == "error: the server left\n" * 2
    assert [len(messages) for messages in asked] == [1, 1]


@pytest.mark.usefixtures("terminal")
def test_ctrl_c_at_the_prompt_leaves_the_second_time() -> None:
    assert converse(Conversation(echo), typing(KeyboardInterrupt, "one", KeyboardInterrupt, "two")) == 0
    with pytest.raises(KeyboardInterrupt):
        converse(Conversation(echo), typing(KeyboardInterrupt, KeyboardInterrupt))


def test_a_pipe_gives_a_question_a_line_and_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert converse(Conversation(echo), typing("one", "", "/help")) == 0
    assert capsys.readouterr() == ("one\n/help\n", "")
    with pytest.raises(ConfigError, match="there is no question"):
        converse(Conversation(echo), typing())
    with pytest.raises(Unavailable):
        converse(Conversation(failing), typing("one"))


def test_ctrl_c_is_taken_between_the_steps_of_the_engine() -> None:
    engine = Engine(engine_config(), FakeExecutor(), Fcfs(), parts=core_parts)
    with LLM.from_engine(engine, letters(97)) as llm:
        pieces = answerer(llm, SamplingParams(max_tokens=50, temperature=0, ignore_eos=True), raw=True)
        answer = pieces([{"role": "user", "content": "Hello"}])
        before = signal.getsignal(signal.SIGINT)
        assert next(answer)
        signal.raise_signal(signal.SIGINT)  # would raise KeyboardInterrupt here and now
        with pytest.raises(KeyboardInterrupt):
            list(answer)
        assert signal.getsignal(signal.SIGINT) is before
        assert not llm.llm_engine.has_unfinished_requests()
        assert "".join(pieces([{"role": "user", "content": "Hello"}]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "lsv-demo", "a", "b"], "unexpected argument 'b'"),
        (["run", "lsv-demo", "a", "-p", "b"], "the question is given twice, as 'a' and by --prompt"),
        (["run", "lsv-demo", "-p", " "], "the question is empty"),
        (["chat", ""], "the question is empty"),
        (["complete", "-p", ""], "the question is empty"),
    ],
)
def test_questions_that_are_none_are_refused_at_once(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) in (1, 2)
    assert words in capsys.readouterr().err


def test_an_evening_in_a_terminal(tmp_path: Path) -> None:
    own_cache(tmp_path)
    environment = {"LSV_CACHE_ROOT": str(tmp_path), "LSV_LOG_LEVEL": "warning"}
    with Terminal(["run", "lsv-demo"], environment) as terminal:
        terminal.wait_for(">")
        terminal.type("/help\r")
        terminal.wait_for("/system TEXT")
        terminal.wait_for(">")
        terminal.type("\x1b[200~Where does\nMira live?\x1b[201~\r")
        terminal.wait_for("Mira lives in Lorn.")
        terminal.wait_for(">")
        terminal.type("\x03")
        terminal.wait_for("press Ctrl-D or Ctrl-C again")
        terminal.type("\x1b[A")  # the question before
        terminal.wait_for("Mira live?")
        terminal.type("\r")
        terminal.wait_for("Mira lives in Lorn.")
        terminal.wait_for(">")
        terminal.type("/bye\r")
        assert terminal.end() == 0
    (history,) = tmp_path.glob("lsv/questions")
    assert "+Where does\n+Mira live?\n" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
