"""What tests of rows started: seen in fixtures and bodies, written down, and compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from suite import evidence

pytest_plugins = ["pytester"]

CONFTEST = """
from suite import evidence

def pytest_addoption(parser):
    parser.addoption("--renew", action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "row: a row")
    config.pluginmanager.register(evidence.Witness())
    config.pluginmanager.register(evidence.Record(evidence.FILE if config.getoption("--renew") else None))
"""
TESTS = """
import subprocess, sys, pytest
from lsv.settings import Declared, Setting, Settings, options

SOME = Declared((Setting(name="some", help="one"),))

@pytest.fixture(scope="module")
def server():
    subprocess.Popen([sys.executable, "-m", "lsv", "--version", "--platform", "xpu", "--emulate"]).wait()

@pytest.fixture
def around(server): ...

@pytest.mark.row("F-1")
def test_first(around): ...

@pytest.mark.row("F-1")
@pytest.mark.parametrize("reads", [False, True])
def test_second(server, reads):
    if reads:
        Settings(SOME, {})

@pytest.mark.row("F-1")
def test_third(): ...

@pytest.mark.row("F-1")
def test_fourth():
    Settings(SOME, {})

@pytest.mark.row("F-1")
def test_fifth():
    Settings(Declared(options.CACHING), {})

def test_without_a_row():
    Settings(SOME, {})
"""
STARTED = {
    "test_it.py::test_first": {"fast": ["command xpu emulated"]},
    "test_it.py::test_second": {"fast": ["command xpu emulated"]},
    "test_it.py::test_third": {"fast": []},
    "test_it.py::test_fourth": {"fast": ["settings"]},
    "test_it.py::test_fifth": {"fast": []},
}


@pytest.fixture
def file(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of a run of its own."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TESTS)
    found = pytester.path / "tests" / "evidence.json"
    found.parent.mkdir()
    monkeypatch.setattr(evidence, "FILE", found)
    (pytester.path / "pytest.ini").write_text("[pytest]\n")
    return found


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:xdist", "-p", "no:cacheprovider", *arguments)


def test_fixtures_count_for_every_test_that_uses_them(pytester: pytest.Pytester, file: Path) -> None:
    run(pytester, "--renew").assert_outcomes(passed=7)
    assert json.loads(file.read_text()) == STARTED


def test_a_run_that_started_something_else_fails(pytester: pytest.Pytester, file: Path) -> None:
    file.write_text(json.dumps(STARTED))
    assert run(pytester).ret == 0
    claimed = {**STARTED, "test_it.py::test_third": {"fast": ["engine cpu"]}}
    file.write_text(json.dumps(claimed))
    result = run(pytester)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["test_it.py::test_third (fast): started nothing, * says ?'engine cpu'?"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([sys.executable, "-m", "lsv", "serve", "x", "--platform=hpu", "--emulate"], "command hpu emulated"),
        (["/somewhere/lsv", "plan", "x"], "command"),
        ([sys.executable, "example.py", "--device", "xpu"], "command xpu"),
        ([sys.executable, "-m", "lsv.engine.process"], None),
        (["c++", "-O3", "kernel.cpp"], None),
        ("lsv serve x", None),
    ],
)
def test_programs_that_run_lsv_are_commands(words: list[str] | str, expected: str | None) -> None:
    assert evidence._process(None, words) == expected


@pytest.mark.parametrize("name", ["a.py::test_b", "a.py::test_b[1-x@y]", "a.py::test_b@group", "a.py::test_b[1]@group"])
def test_parameters_and_groups_are_not_part_of_a_test(name: str) -> None:
    assert evidence._test_of(name) == "a.py::test_b"


def test_the_environment_chooses_the_platform_of_a_command() -> None:
    words = [sys.executable, "-m", "lsv", "serve"]
    environment = {"LSV_PLATFORM": "cuda", "LSV_EMULATE": "1"}
    assert evidence._process(None, words, env=environment) == "command cuda emulated"
