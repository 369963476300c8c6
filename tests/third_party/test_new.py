"""What ``lsv new plugin`` writes works: its own tests pass."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.timeout(300)
def test_a_new_quantizer_passes_its_tests(tmp_path: Path, run: Callable) -> None:
    _write_and_test("quantizer", tmp_path, run)


@pytest.mark.row("F-693")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["model", "platform"])
def test_a_new_plugin_passes_its_tests(kind: str, tmp_path: Path, run: Callable) -> None:
    _write_and_test(kind, tmp_path, run)


def _write_and_test(kind: str, tmp_path: Path, run: Callable) -> None:
    made = run("-m", "lsv", "new", "plugin", "my-thing", "--kind", kind, "--path", str(tmp_path))
    assert made.returncode == 0, made.stderr
    folder = tmp_path / "lsv-my-thing"
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder), path=(folder,), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
