"""The perplexity of each online weight format on real weights, as a ratio to plain weights; also of fitted ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from lsv import LLM, plugins
from lsv_bench.eval.formats import online_formats
from lsv_bench.eval.perplexity import measure_perplexity
from published.documents import write_part
from published.golden import CHARACTERS, CONTEXT, FOLDER, STRIDE, TEXT
from published.models import Published
from published.prompts import read_document

FILE = FOLDER / "formats.json"
FITTED_FILE = FOLDER / "fitted.json"
FITTED = ("sym_int4", "sym_int4_g64")
"""Formats that are also fitted to a text."""
_ELSEWHERE = {"inc"}
"""Formats that need a device and a file of calibration."""


def name_formats() -> list[str]:
    return [name for name in online_formats(plugins.load(None).catalog) if name not in _ELSEWHERE]


def measure_formats(published: Published, names: Iterable[str]) -> dict[str, float]:
    """Perplexity of SmolLM2 in each format, divided by that in bfloat16."""
    model = published.plain_smollm2()
    plain = _perplexity(published, model, None)
    return {name: round(_perplexity(published, model, name) / plain, 4) for name in names}


def measure_fitted(published: Published, names: Iterable[str]) -> dict[str, float]:
    """The same of formats that were fitted to other documents."""
    model = published.plain_smollm2()
    plain = _perplexity(published, model, None)
    return {name: round(_perplexity(published, published.fitted(model, name), None) / plain, 4) for name in names}


@cache
def _perplexity(published: Published, model: Path, name: str | None) -> float:
    text = read_document(published.folder("text"), TEXT)[:CHARACTERS]
    with LLM(str(model), dtype="bfloat16", quantization=name, max_model_len=1024, cpu_kvcache_space=1) as llm:
        return measure_perplexity(llm, text, CONTEXT, STRIDE).perplexity


def write_formats(published: Published) -> None:
    """Renew the kept ratios and their table in docs/quantization.md."""
    found, fitted = measure_formats(published, name_formats()), measure_fitted(published, FITTED)
    for file, ratios in ((FILE, found), (FITTED_FILE, fitted)):
        file.write_text(json.dumps(ratios, indent=2) + "\n")
    write_part("quantization.md", "real weights", table(found, fitted))


def table(ratios: Mapping[str, float], fitted: Mapping[str, float]) -> str:
    rows = (
        f"| {name} | {ratio:.3f} | {f'{fitted[name]:.3f}' if name in fitted else '-'} |"
        for name, ratio in ratios.items()
    )
    return "\n".join(("| format | perplexity, as a ratio | fitted to a text |", "|---|---:|---:|", *rows))
