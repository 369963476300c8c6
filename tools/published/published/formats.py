"""The perplexity of each online weight format on real weights, as a ratio to plain weights."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache

from lsv import LLM, plugins
from lsv_bench.eval.formats import online_formats
from lsv_bench.eval.perplexity import measure_perplexity
from published.documents import write_part
from published.golden import CHARACTERS, CONTEXT, FOLDER, STRIDE, TEXT
from published.models import Published
from published.prompts import read_document

FILE = FOLDER / "formats.json"
_ELSEWHERE = {"inc"}
"""Formats that need a device and a file of calibration."""


def name_formats() -> list[str]:
    return [name for name in online_formats(plugins.load(None).catalog) if name not in _ELSEWHERE]


def measure_formats(published: Published, names: Iterable[str]) -> dict[str, float]:
    """Perplexity of SmolLM2 in each format, divided by that in bfloat16."""
    plain = _perplexity(published, None)
    return {name: round(_perplexity(published, name) / plain, 4) for name in names}


@cache
def _perplexity(published: Published, name: str | None) -> float:
    text = read_document(published.folder("text"), TEXT)[:CHARACTERS]
    model = str(published.plain_smollm2())
    with LLM(model, dtype="bfloat16", quantization=name, max_model_len=1024, cpu_kvcache_space=1) as llm:
        return measure_perplexity(llm, text, CONTEXT, STRIDE).perplexity


def write_formats(published: Published) -> None:
    """Renew the kept ratios and their table in docs/quantization.md."""
    found = measure_formats(published, name_formats())
    FILE.write_text(json.dumps(found, indent=2) + "\n")
    write_part("quantization.md", "real weights", table(found))


def table(ratios: Mapping[str, float]) -> str:
    rows = (f"| {name} | {ratio:.3f} |" for name, ratio in ratios.items())
    return "\n".join(("| format | perplexity, as a ratio |", "|---|---:|", *rows))
