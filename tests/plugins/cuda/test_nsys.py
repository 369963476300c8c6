"""``lsv nsys``, with a command in place of Nsight Systems that runs what it is given and writes a report at its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lsv.cli import main
from lsv_base.errors import ConfigError
from lsv_cuda.nsys import read

FAKE = """#!/bin/bash
# Interrupted, it ends what it runs and writes what it has, as the real one does.
trap ':' INT
for word; do
  case $word in --output=*) report=${word#--output=} ;; esac
done
printf '%s\\n' "$@" > "$report.words"
while [[ $1 == --* || $1 == profile ]]; do shift; done
"$@" &
until wait $!; code=$?; ((code <= 128)) || ! kill -0 $! 2>/dev/null; do :; done
touch "$report.nsys-rep"
"""


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where reports are written."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nsys").write_text(FAKE)
    (tools / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "reports"


@pytest.mark.row("F-867", "F-868")
def test_a_command_runs_under_it(nsys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NODEID", "3")
    assert main.main(["nsys", "--output", str(nsys), "version"]) == 0
    assert (nsys / "profile-node3.nsys-rep").exists()
    words = (nsys / "profile-node3.words").read_text().splitlines()
    assert words[0] == "profile"
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop"} <= set(words)
    assert words[-4:] == [sys.executable, "-m", "lsv", "version"]


@pytest.mark.slow
@pytest.mark.row("F-867")
def test_a_server_that_is_asked_to_end_leaves_a_report(nsys: Path) -> None:
    line = [sys.executable, "-m", "lsv", "nsys", f"--output={nsys}", "serve", "lsv-demo", "--port", "0"]
    options = ["--platform", "cpu", "--max-model-len", "256", "--max-num-seqs", "4"]
    with subprocess.Popen([*line, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            assert running.stdout is not None
            said = next((one for one in running.stdout if one.startswith("lsv is ready on")), "")
            assert said
            running.send_signal(signal.SIGTERM)
            rest = running.communicate(timeout=60)[0]
        finally:
            running.kill()
    assert (nsys / "profile-node0.nsys-rep").exists(), rest
    assert running.returncode == 0, rest


def test_it_is_told_of_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert main.main(["nsys", "version"]) == 2
    assert "nsys is not installed here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["serve", "M", "--output", "x"], (Path(), ["serve", "M", "--output", "x"])),
        (["-o", "x", "serve"], (Path("x"), ["serve"])),
        (["--output=x", "bench", "throughput", "--profile"], (Path("x"), ["bench", "throughput", "--profile"])),
    ],
)
def test_its_own_option_comes_first(words: list[str], found: tuple[Path, list[str]]) -> None:
    assert read(words) == found


@pytest.mark.parametrize("words", [[], ["--output"], ["--output", "x"], ["--outptu", "x", "serve"]])
def test_without_a_command_it_says_how_it_is_used(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="nsys needs a command of lsv"):
        read(words)
