"""Tables of commands: tab-separated in a pipe, whole in a narrow terminal."""

from __future__ import annotations

import io

import pytest
from rich.table import Table
from rich.text import Text

from lsv.cli import main
from lsv.cli.console import TableConsole

NAME = "SomeVeryLongArchitectureForConditionalGeneration"


def table() -> Table:
    made = Table("architecture", "tasks", "notes", title="models")
    made.add_row(NAME, "generate, embed", Text("a note\tof words\non two lines"))
    made.add_row("Short", "", "[bold]marked[/bold]")
    return made


def shown(width: int, *, terminal: bool) -> str:
    file = io.StringIO()
    TableConsole(file=file, width=width, force_terminal=terminal, color_system=None, highlight=False).print(table())
    return file.getvalue()


def test_a_pipe_gets_tabs() -> None:
    assert shown(80, terminal=False).splitlines() == [
        "# models",
        "architecture\ttasks\tnotes",
        f"{NAME}\tgenerate, embed\ta note of words on two lines",
        "Short\t\tmarked",
    ]


@pytest.mark.parametrize("width", [40, 70, 80, 200])
def test_no_word_is_cut_in_a_terminal(width: int) -> None:
    text = shown(width, terminal=True)
    assert "…" not in text
    for word in (NAME, "generate,", "embed", "note", "words"):
        assert word in text
    assert max(map(len, text.splitlines())) <= max(width, len(NAME))


def test_a_narrow_terminal_gets_paragraphs() -> None:
    assert [line.rstrip() for line in shown(60, terminal=True).splitlines()[1:3]] == [NAME, "  tasks: generate, embed"]
    assert "│" in shown(200, terminal=True)


@pytest.mark.parametrize("command", [["models"], ["plugins", "--offers"]])
def test_commands_can_be_searched_in_a_pipe(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "…" not in "".join(lines)
    assert sum("LlamaForCausalLM" in line.split("\t")[0] for line in lines) > 0 or command != ["models"]
    assert lines[0].count("\t") >= 3
