"""Write the table of real models in docs/performance.md: lsv-demo, and published weights that make test-real fetches.

    make test-real
    PYTHONPATH=tools/published .venv/bin/python benchmarks/real_models.py build/published

Each row is an ``lsv eval --speed`` in a process of its own, with the machine's read bandwidth measured right before it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from machine import measure_limits

from lsv_bench.eval.result import Evaluation, Run
from published.documents import write_part
from published.golden import CHARACTERS, TEXT
from published.models import Published
from published.prompts import read_document

INPUT, OUTPUT = 512, 64
THREADS = 2
HEAD = """\
| model | weights | MiB | prefill tok/s | decode tok/s, one stream | share of the read bandwidth | 16 streams |
|---|---|---:|---:|---:|---:|---:|
"""


class Row(NamedTuple):
    """A model, and how its weights are held."""

    name: str
    model: str
    format: str
    options: tuple[str, ...] = ()


def choose_rows(published: Published) -> Iterator[Row]:
    yield Row("lsv-demo", "lsv-demo", "bf16")
    plain = str(published.plain_smollm2())
    yield Row("SmolLM2-135M-Instruct", plain, "bf16", ("--dtype", "bfloat16"))
    for name in ("int8", "fp8", "sym_int4", "sym_int4_g64"):
        yield Row("SmolLM2-135M-Instruct", plain, name, ("--dtype", "bfloat16", "--quantization", name))
    yield Row("SmolLM2-135M-Instruct", str(published.smollm2()), "GGUF, Q4_1")
    yield Row("Gemma 3 270M", str(published.gemma3()), "GGUF, Q4_K_M")


def measure(row: Row, text: Path) -> Evaluation:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        lengths = ["--input-len", str(INPUT), "--output-len", str(OUTPUT), "--max-model-len", "1024"]
        command = [sys.executable, "-m", "lsv", "eval", row.model, "--text", str(text), "--speed", *lengths]
        subprocess.run(
            [*command, *row.options, "--json", str(file), "--log-level", "warning"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return msgspec.json.decode(file.read_bytes(), type=Evaluation)


def show(row: Row, run: Run, gigabytes: float) -> str:
    """A line of the table. Decoding reads each weight once a token."""
    prefill, one, many = run.speed.values()
    share = one * run.weight_bytes / 1e9 / gigabytes
    cells = (f"{run.weight_bytes / 2**20:.1f}", f"{prefill:,.0f}", f"{one:,.0f}", f"{share:.2f}", f"{many:,.0f}")
    return f"| {row.name} | {row.format} | {' | '.join(cells)} |"


def main() -> None:
    published = Published(Path(sys.argv[1]))
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text"
        text.write_text(read_document(published.folder("text"), TEXT)[:CHARACTERS], encoding="utf-8")
        for row in choose_rows(published):
            gigabytes = measure_limits(THREADS)["read_gbps"]
            evaluation = measure(row, text)
            lines.append(show(row, evaluation.runs[0], gigabytes))
            print(lines[-1], flush=True)
    write_part("performance.md", "real models", f"{describe(evaluation)}\n\n{HEAD}" + "\n".join(lines))


def describe(evaluation: Evaluation) -> str:
    where = f"{evaluation.machine.cpu}, {evaluation.machine.cores} cores, {evaluation.time[:10]}"
    return f"`benchmarks/real_models.py`, {where}: prompts of {INPUT} tokens, answers of {OUTPUT}."


if __name__ == "__main__":
    main()
