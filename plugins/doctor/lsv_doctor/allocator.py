"""Which allocator this process has, and how to have another: vLLM advises TCMalloc on CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_LIBRARY = re.compile(r"/(lib(?:tcmalloc|jemalloc|mimalloc)[\w.-]*\.so[\w.]*)")
_PLACES = ("usr/lib/*-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib")
_PACKAGES = "Debian's and Ubuntu's libtcmalloc-minimal4, or Fedora's gperftools-libs"


def describe(root: Path = Path("/")) -> str:
    """What is loaded, from ``/proc/self/maps`` below ``root``; if it is the C library's, where TCMalloc is."""
    loaded = _LIBRARY.search(_read(root / "proc/self/maps"))
    if loaded is not None:
        return f"{loaded.group(1)}, preloaded"
    library = next(_installed(root), None)
    if library is None:
        return f"the C library's; another one is tried with LD_PRELOAD, TCMalloc is in {_PACKAGES}"
    return f"the C library's; TCMalloc is tried with LD_PRELOAD={library}"


def _installed(root: Path) -> Iterator[str]:
    """Paths of TCMalloc's libraries, the small one first, as the system calls them."""
    for name in ("libtcmalloc_minimal.so.*", "libtcmalloc.so.*"):
        for place in _PLACES:
            found = sorted(root.glob(f"{place}/{name}"), key=lambda file: len(file.name))
            yield from (f"/{file.relative_to(root)}" for file in found)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
