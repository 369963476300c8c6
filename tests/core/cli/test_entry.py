"""How ``lsv`` begins and ends: Ctrl-C while modules are imported, help with its arguments, flags cut short."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lsv.cli import main

INTERRUPTED = """
import builtins, runpy, sys
real = builtins.__import__
def interrupt(name, *rest, **more):
    if name == "lsv.cli.main":
        raise KeyboardInterrupt
    return real(name, *rest, **more)
builtins.__import__ = interrupt
sys.argv = ["lsv", "plugins"]
runpy.run_module("lsv", run_name="__main__")
"""


def test_ctrl_c_during_imports_ends_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("arguments", "usage"),
    [
        (["new", "plugin"], "lsv new plugin NAME [options]"),
        (["models"], "lsv models [NAME …] [options]"),
        (["plugins"], "lsv plugins [check FOLDER] [options]"),
        (["bench", "compare"], "lsv bench compare FILE FILE [options]"),
        (["run"], "lsv run [MODEL] [QUESTION] [options]"),
        (["chat"], "lsv chat [QUESTION] [options]"),
        (["complete"], "lsv complete [TEXT] [options]"),
        (["serve"], "lsv serve [MODEL] [options]"),
        (["doctor"], "lsv doctor [MODEL] [options]"),
        (["webui"], "lsv webui [options]"),
    ],
)
def test_help_shows_plain_arguments(arguments: list[str], usage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([*arguments, "--help"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"usage: {usage}"


def test_a_slip_is_no_flag_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["serve", "--prot", "8000"]) == 2
    assert "unknown option --prot; did you mean --port, or --protect-metrics?" in capsys.readouterr().err
