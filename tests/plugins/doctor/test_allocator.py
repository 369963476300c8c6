"""Which allocator is loaded, and where another one is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsv.plugins import load
from lsv_doctor.allocator import describe
from lsv_doctor.findings import look

MAPS = """\
7f0000000000-7f0000001000 r-xp 00000000 00:00 1 /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000002000-7f0000003000 r-xp 00000000 00:00 2 {}
"""


def machine(folder: Path, loaded: str = "/usr/lib/libm.so.6", *installed: str) -> Path:
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/maps").write_text(MAPS.format(loaded))
    for path in installed:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


@pytest.mark.row("F-450")
@pytest.mark.parametrize(
    ("loaded", "name"),
    [
        ("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4.5.10", "libtcmalloc_minimal.so.4.5.10"),
        ("/opt/lib/libjemalloc.so.2", "libjemalloc.so.2"),
    ],
)
def test_what_is_preloaded_is_named(tmp_path: Path, loaded: str, name: str) -> None:
    assert describe(machine(tmp_path, loaded)) == f"{name}, preloaded"


@pytest.mark.row("F-450")
def test_how_to_preload_what_is_installed(tmp_path: Path) -> None:
    files = ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4.5.10", "libtcmalloc_minimal.so.4")
    root = machine(tmp_path, "/usr/lib/libm.so.6", *(f"usr/lib/x86_64-linux-gnu/{name}" for name in files))
    wanted = "LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
    assert describe(root) == f"the C library's; TCMalloc is tried with {wanted}"


def test_how_to_get_what_is_not_installed(tmp_path: Path) -> None:
    assert "TCMalloc is in Debian's and Ubuntu's libtcmalloc-minimal4" in describe(machine(tmp_path))
    assert describe(tmp_path / "nothing").startswith("the C library's")


@pytest.mark.row("F-450")
def test_the_doctor_says_it() -> None:
    (line,) = (line for line in look(load()) if line.what == "memory allocator")
    assert line.ok
    assert line.found == describe()
