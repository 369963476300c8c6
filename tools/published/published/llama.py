"""GGUF files that llama.cpp requantises, to compare its formats with lsv's.

llama.cpp is built once from the archive that packages.tsv names, in a virtual environment of its own, which takes
minutes.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from published.models import Published
from published.packages import read_packages

TYPES = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15}
"""``llama_ftype`` of llama.h."""
_REQUANTISE = """
import ctypes, sys, llama_cpp
source, target, kind = sys.argv[1:]
llama_cpp.llama_backend_init()
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.allow_requantize = int(kind), True
sys.exit(llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)))
"""


def requantise(published: Published, file: Path, kind: str) -> Path:
    """A model's GGUF file in another type, made by llama.cpp from the weights that ``file`` stands for."""
    target = published.place / "requantised" / f"{file.stem}-{kind}.gguf"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        unfinished = target.with_suffix(".unfinished")
        command = [str(_provide_python(published)), "-c", _REQUANTISE, str(file), str(unfinished), str(TYPES[kind])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        unfinished.rename(target)
    return target


def _provide_python(published: Published) -> Path:
    """An interpreter that has llama.cpp."""
    folder = published.place / "llama.cpp"
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        published.folder("text")  # fetches the archive
        archive = next(package.archive for package in read_packages() if package.package == "llama-cpp-python")
        venv.create(folder, clear=True, with_pip=True)
        print("building llama.cpp", file=sys.stderr, flush=True)
        source = published.place / "archives" / archive
        subprocess.run([python, "-m", "pip", "install", "-q", source], check=True)
        ready.touch()
    return python
