"""``pip install ./compat/vllm`` into an environment of its own, and what it leaves of others."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .conftest import SOURCES

pytestmark = pytest.mark.slow


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment that sees the packages of this one, lsv and hatchling among them."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    (packages,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    (packages / "these.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return tmp_path / "env" / "bin" / "python"


def pip(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    line = [python, "-m", "pip", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=200)


def installed(python: Path) -> set[str]:
    """The files of the environment that are called after vllm."""
    (packages,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    return {file.name for place in (packages, python.parent) for file in place.iterdir() if "vllm" in file.name}


INSTALL = ("install", "--no-build-isolation", "--no-deps", SOURCES)


def test_it_is_installed_and_removed_without_a_trace(python: Path) -> None:
    assert installed(python) == set()
    done = pip(python, *INSTALL)
    assert done.returncode == 0, done.stderr
    assert installed(python) == {"vllm", "vllm-0.22.0+lsv.dist-info"}
    version = subprocess.run(
        [python, "-c", "import vllm, importlib.metadata as m; print(vllm.__version__, m.version('vllm'), vllm.LLM)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert version == "0.22.0+lsv 0.22.0+lsv <class 'lsv_offline.llm.LLM'>\n"
    assert (
        "lsv"
        in subprocess.run([python.parent / "vllm", "--version"], capture_output=True, text=True, check=True).stdout
    )
    assert pip(python, *INSTALL, "--force-reinstall").returncode == 0, "it may replace itself"
    assert pip(python, "uninstall", "-y", "vllm").returncode == 0
    assert installed(python) == set()


def test_it_does_not_take_the_place_of_vllm(python: Path) -> None:
    (packages,) = (python.parents[1] / "lib").glob("python3*/site-packages")
    real = packages / "vllm-0.11.0.dist-info"
    real.mkdir()
    (real / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.11.0\n")
    (real / "RECORD").write_text("vllm-0.11.0.dist-info/METADATA,,\nvllm-0.11.0.dist-info/RECORD,,\n")
    done = pip(python, *INSTALL)
    assert done.returncode != 0
    assert f"vllm 0.11.0 is installed in {packages}, and pip would remove it" in done.stderr
    assert "run pip uninstall vllm first" in done.stderr
    assert "Traceback" not in done.stderr
    assert installed(python) == {"vllm-0.11.0.dist-info"}
    assert pip(python, "uninstall", "-y", "vllm").returncode == 0
    assert pip(python, *INSTALL).returncode == 0
