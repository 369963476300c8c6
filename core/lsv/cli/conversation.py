"""A conversation in the terminal: questions, streamed answers, and commands that begin with a slash."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

from lsv.cli.questions import Reader, is_interactive, open_reader
from lsv_base.errors import BadRequest, ConfigError, LsvError

Message = dict[str, str]
Answer = Callable[[list[Message]], Generator[str]]
"""Streams the pieces of the answer to a conversation. Closing it stops the answer; Ctrl-C raises in it."""

_HELP = """\
/system TEXT   set the system message; without TEXT, remove it
/file PATH     add a text file to the next question
/clear         forget the conversation
/bye           leave, as Ctrl-D does
/help          show this

Ctrl-C stops an answer. Alt-Enter adds a line to a question; pasted lines are one question.
To ask a question that begins with a slash, put a space before the slash."""
_LARGEST_FILE = 1 << 20


class Conversation:
    """The messages so far, and the files that go with the next question.

    With ``turns``, each question is asked with the conversation before it; without, each is asked alone.
    """

    def __init__(self, answer: Answer, *, system: str | None = None, turns: bool = True) -> None:
        self._answer = answer
        self._system = system
        self._turns = turns
        self._messages: list[Message] = []
        self._files: list[str] = []
        self._commands: dict[str, Callable[[str], None]] = {
            "/system": self._set_system,
            "/file": self._add_file,
            "/clear": self._clear,
            "/help": lambda _: _say(_HELP),
        }

    def ask(self, text: str) -> bool:
        """Print the answer as it streams in; returns False if Ctrl-C stopped it.

        A partial answer stays in the conversation. A question without any answer does not, because servers expect the
        roles to alternate.
        """
        question = {"role": "user", "content": "\n\n".join((*self._files, text))}
        said, stopped = "", False
        with closing(self._answer([*self._system_messages(), *self._messages, question])) as pieces:
            try:
                for piece in pieces:
                    said += piece
                    print(piece, end="", flush=True)
            except KeyboardInterrupt:
                stopped = True
        if said or stopped:
            print(flush=True)
        self._files.clear()
        if said and self._turns:
            self._messages += (question, {"role": "assistant", "content": said})
        return not stopped

    def run_command(self, line: str) -> None:
        """Run a line that begins with a slash."""
        name, _, rest = line.partition(" ")
        command = self._commands.get(name)
        if command is None:
            _say(
                f"there is no command {name}; /help lists the commands. "
                "To send the line as a question, put a space before the slash"
            )
        else:
            command(rest.strip())

    def _system_messages(self) -> list[Message]:
        return [{"role": "system", "content": self._system}] if self._system else []

    def _set_system(self, text: str) -> None:
        self._system = text or None
        _say("system message set" if text else "system message removed")

    def _add_file(self, path: str) -> None:
        try:
            text = _read_text(Path(path).expanduser())
        except (OSError, ValueError) as cause:
            _say(f"/file {path}: {cause}")
            return
        self._files.append(f"{Path(path).name}:\n```\n{text}\n```")
        _say(f"{Path(path).name} will be sent with the next question ({len(text):,} characters)")

    def _clear(self, _: str) -> None:
        self._messages.clear()
        self._files.clear()
        _say("conversation cleared")


def converse(conversation: Conversation, read: Reader | None = None) -> int:
    """Read and answer questions until the input ends. In a pipe each line is a question. Returns the exit code.

    Raises ``ConfigError`` for a pipe without a question. A failed answer is raised in a pipe; in a terminal the error
    is shown and the conversation goes on.
    """
    interactive, asked, interrupted = is_interactive(), 0, False
    read = read or open_reader()
    while True:
        try:
            line = read()
        except EOFError:
            if not interactive and not asked:
                raise ConfigError(NO_QUESTION) from None
            return 0
        except KeyboardInterrupt:
            if interrupted or not interactive:
                raise
            interrupted = True
            _say("to leave, press Ctrl-D or Ctrl-C again, or enter /bye")
            continue
        interrupted = False
        if interactive and line.rstrip() in ("/bye", "/exit", "/quit"):
            return 0
        if interactive and line.startswith("/"):
            conversation.run_command(line.rstrip())
        elif line.strip():
            asked += 1
            _ask(conversation, line.strip(), interactive=interactive)


NO_QUESTION = "there is no question: give it as an argument, or pipe it to standard input"


def _ask(conversation: Conversation, text: str, *, interactive: bool) -> None:
    try:
        finished = conversation.ask(text)
    except LsvError as error:
        if not interactive:
            raise
        _say(f"error: {error.message}")
        return
    if not finished and not interactive:
        raise KeyboardInterrupt


def choose_question(given: str | None, words: tuple[str, ...], flag: str) -> str | None:
    """The question of a command line: the value of ``flag`` or a plain word; None if there is neither.

    Raises ``ConfigError`` if both are given, ``BadRequest`` for an empty question.
    """
    if given is not None and words:
        raise ConfigError(f"the question is given twice, as {words[0]!r} and by {flag}")
    question = words[0] if words else given
    if question is not None and not question.strip():
        raise BadRequest("the question is empty: write one, or leave it out to start a conversation")
    return question


def _read_text(path: Path) -> str:
    """Raises ``OSError``; ``ValueError`` if the file is not text or too large."""
    if path.stat().st_size > _LARGEST_FILE:
        raise ValueError(f"the file is larger than {_LARGEST_FILE >> 20} MiB, the limit for a question")
    try:
        return path.read_text(encoding="utf-8").rstrip()
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text") from None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
