"""Function calls of lsv in a file: of every process, line by line as they happen, and none unless asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lsv_base.errors import ConfigError
from lsv_base.processes import calls

DEMO = """
import os, signal
from lsv.cli.main import main

assert main(["--version"]) == 0
os.kill(os.getpid(), signal.SIGKILL)
"""
ENGINE = """
import sys
from lsv import LLM, SamplingParams

with LLM(sys.argv[1], platform="cpu", tensor_parallel_size=2, skip_tokenizer_init=True) as llm:
    llm.generate([{"prompt_token_ids": [5, 6]}], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
"""


def run(script: str, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LSV_", "VLLM_"))}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**kept, "TMPDIR": str(folder), **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.row("F-829", "F-875")
def test_calls_are_in_the_file_of_a_process_that_was_killed(tmp_path: Path) -> None:
    found = run(DEMO, tmp_path, VLLM_TRACE_FUNCTION="1")
    assert found.returncode == -signal.SIGKILL, found.stderr
    (file,) = tmp_path.glob("lsv-calls-*/process-*.log")
    assert f"function calls are written to {file}" in found.stderr
    assert file.parent.stat().st_mode & 0o777 == 0o700
    lines = file.read_text().splitlines()
    (call,) = [line for line in lines if " call _dispatch " in line]
    assert "lsv/cli/main.py:" in call
    assert " from main (" in call
    assert lines[-1].split()[2:4] == ["return", "main"]
    assert not any("json" in line.split(" from ")[0] for line in lines), "others' functions are left out"


@pytest.mark.row("F-875")
def test_ranks_write_files_of_their_own(tmp_path: Path) -> None:
    from lsv_testing.tiny import tiny

    checkpoint = tiny("llama", tmp_path / "llama")
    found = run(ENGINE, tmp_path, str(checkpoint), VLLM_TRACE_FUNCTION="1")
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
    texts = [file.read_text() for file in tmp_path.glob("lsv-calls-*/process-*.log")]
    assert sorted(" call Worker.launch " in text for text in texts) == [False, True, True]
    assert sum(" call Engine.step " in text for text in texts) == 1


def test_nothing_is_written_unasked(tmp_path: Path) -> None:
    assert run(DEMO, tmp_path, VLLM_TRACE_FUNCTION="0").returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cant_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(ConfigError, match=r"trace_function: no file can be made in /nowhere \(.*\): set TMPDIR"):
        calls.record()
