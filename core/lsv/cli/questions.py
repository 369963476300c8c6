"""Questions from a terminal or a pipe.

In a terminal prompt_toolkit edits the line, keeps a history over sessions and takes pasted lines as one question. A
pipe gives a question a line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lsv.settings.caching import cache_root

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

PROMPT = "> "

Reader = Callable[[], str]
"""Returns the next question. Raises ``EOFError`` at the end, ``KeyboardInterrupt`` on Ctrl-C."""


def is_interactive() -> bool:
    """Whether input and output are both a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def open_reader() -> Reader:
    """The reader of questions for this process."""
    if not is_interactive():
        return input
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(history=_open_history(), key_bindings=_bind_keys())
    return lambda: session.prompt(PROMPT)


def _open_history() -> History:
    """The history of questions, readable by this user only; kept in memory if no file can be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    file = cache_root() / "lsv" / "questions"
    return FileHistory(str(file)) if _can_keep(file) else InMemoryHistory()


def _can_keep(file: Path) -> bool:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        with file.open("a"):
            return True
    except OSError:
        return False


def _bind_keys() -> KeyBindings:
    """Key bindings: Alt-Enter adds a line to the question."""
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
