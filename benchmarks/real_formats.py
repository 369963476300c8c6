"""Write the table of weight formats in docs/quantization.md, on published weights that make test-real fetches.

    make test-real
    PYTHONPATH=tools/published .venv/bin/python benchmarks/real_formats.py build/published

Beside lsv's formats stand llama.cpp's, requantised from the same files and served by lsv. Fitted formats were fitted to
other documents than the one that perplexity is measured on. Each row is measured in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from lsv import LLM, SamplingParams
from lsv_bench.eval.perplexity import measure_perplexity, spans
from lsv_bench.eval.speed import Lengths, measure_speed
from lsv_bench.machine import describe_machine
from published.documents import write_part
from published.golden import CHARACTERS, CONTEXT, STRIDE, TEXT
from published.llama import TYPES, requantise
from published.models import Published
from published.prompts import read_document

LENGTHS = Lengths(512, 64)
ONLINE = ("int8", "fp8", "sym_int4", "sym_int4_g64", "nf4", "mxfp4")
FITTED = ("sym_int4", "sym_int4_g64")
HEAD = """\
| model | format | MiB | perplexity, as a ratio | same greedy token | decode tok/s | prefill tok/s |
|---|---|---:|---:|---:|---:|---:|
"""
_MODE = "--measure"


class Row(NamedTuple):
    """A model in a format; ``format`` is what lsv makes of the folder or file ``place``, if anything."""

    model: str
    name: str
    place: str
    format: str | None = None


class Measured(msgspec.Struct):
    """``choices`` is the likeliest token after each prefix of the text."""

    mib: float
    perplexity: float
    choices: list[int]
    decode: float
    prefill: float


def choose_rows(published: Published) -> Iterator[Row]:
    """Each model's plain weights come first."""
    models = (
        ("SmolLM2-135M-Instruct", published.plain_smollm2(), published.smollm2()),
        ("Gemma 3 270M", published.plain_gemma3(), published.gemma3()),
    )
    for model, plain, file in models:
        yield Row(model, "bfloat16", str(plain))
        for format in ONLINE:
            yield Row(model, f"`{format}`", str(plain), format)
        for format in FITTED:
            yield Row(model, f"`{format}`, fitted to a text", str(published.fitted(plain, format)))
        for kind in TYPES:
            yield Row(model, f"llama.cpp {kind}", str(requantise(published, file, kind)))


def measure(place: str, format: str | None, text: str) -> Measured:
    with LLM(place, dtype="bfloat16", quantization=format, max_model_len=1024, cpu_kvcache_space=1) as llm:
        perplexity = measure_perplexity(llm, text, CONTEXT, STRIDE).perplexity
        choices = choose_greedily(llm, text)
        speed = measure_speed(llm, LENGTHS)
        decode, prefill = speed["decode_tokens_per_s"], speed["prefill_tokens_per_s"]
        return Measured(llm.fit.weight_bytes / 2**20, perplexity, choices, decode, prefill)


def choose_greedily(llm: LLM, text: str) -> list[int]:
    windows = list(spans(llm.get_tokenizer().encode(text), CONTEXT, STRIDE))
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": list(span.ids)} for span in windows], params, use_tqdm=False)
    found: list[int] = []
    for span, output in zip(windows, outputs, strict=True):
        for position in (output.prompt_logprobs or ())[span.first :]:
            assert position is not None, "only the first token has no predecessor"
            found.append(min(position, key=lambda token: position[token].rank or sys.maxsize))
    return found


def show(row: Row, found: Measured, plain: Measured) -> str:
    same = sum(map(int.__eq__, found.choices, plain.choices)) / len(plain.choices)
    ratio = found.perplexity / plain.perplexity
    cells = (f"{found.mib:.1f}", f"{ratio:.3f}", f"{same:.1%}", f"{found.decode:,.0f}", f"{found.prefill:,.0f}")
    return f"| {row.model} | {row.name} | {' | '.join(cells)} |"


def measure_elsewhere(row: Row, text: str) -> Measured:
    command = [sys.executable, __file__, _MODE, row.place, row.format or ""]
    done = subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Measured)


def main() -> None:
    published = Published(Path(sys.argv[1]))
    text = read_document(published.folder("text"), TEXT)[:CHARACTERS]
    lines: list[str] = []
    plain: dict[str, Measured] = {}
    for row in choose_rows(published):
        found = measure_elsewhere(row, text)
        lines.append(show(row, found, plain.setdefault(row.model, found)))
        print(lines[-1], flush=True)
    write_part("quantization.md", "formats of real models", f"{describe()}\n\n{HEAD}" + "\n".join(lines))


def describe() -> str:
    machine = describe_machine()
    where = f"{machine.cpu}, {machine.cores} cores, {datetime.now(UTC):%Y-%m-%d}"
    return f"`benchmarks/real_formats.py`, {where}: prompts of {LENGTHS.prompt} tokens, answers of {LENGTHS.answer}."


if __name__ == "__main__":
    if sys.argv[1] == _MODE:
        print(msgspec.json.encode(measure(sys.argv[2], sys.argv[3] or None, sys.stdin.read())).decode())
    else:
        main()
