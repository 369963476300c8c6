"""The report: what was found, in Markdown, and the same as JSON for whoever compares two runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from first_run.checks import Done
from first_run.ladder import Outcome

_SHOWN = 40
"""Lines of a log that the report shows."""


def write(out: Path, device: str, ladder: Sequence[Outcome], done: Sequence[Done]) -> Path:
    """``report.md`` and ``report.json`` in ``out``."""
    file = out / "report.md"
    file.write_text("\n".join(_lines(device, ladder, done)) + "\n", encoding="utf-8")
    found = {
        "device": device,
        "ladder": [asdict(outcome) for outcome in ladder],
        "checks": [{"name": one.check.name, "code": one.code, "seconds": one.seconds} for one in done],
    }
    (out / "report.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return file


def _lines(device: str, ladder: Sequence[Outcome], done: Sequence[Done]) -> list[str]:
    lines = [
        f"# First run on {device}",
        "",
        "## The ladder",
        "",
        "| what is added | outcome | ready after |",
        "|---|---|---|",
    ]
    for outcome in ladder:
        ready = outcome.found.get("ready")
        lines.append(f"| {outcome.rung.adds} | {outcome.verdict} | {'' if ready is None else f'{ready:.1f} s'} |")
    lines += ["", "## Checks", "", "| what | outcome | seconds |", "|---|---|---|"]
    for one in done:
        how = "took too long" if one.code is None else "ok" if one.code == 0 else f"ended with {one.code}"
        lines.append(f"| {one.check.name} | {how} | {one.seconds:.0f} |")
    for outcome in ladder:
        if not outcome.holds and outcome.tail:
            lines += ["", f"## {outcome.rung.adds}: {outcome.verdict}", "", "```", outcome.tail, "```"]
    for one in done:
        text = one.log.read_text(encoding="utf-8", errors="replace").splitlines()
        lines += ["", f"## {one.check.name}", "", f"`{' '.join(one.check.command)}`", "", "```", *text[-_SHOWN:], "```"]
    return lines
