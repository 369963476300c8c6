"""What Triton's kernels take on GPUs that need not be there: the table in plugins/triton/README.md.

python tools/gpu_code.py            compiles everything and prints the table; a minute or two for each GPU
python tools/gpu_code.py --write    writes it into the README
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from lsv.settings import environment_with

ROOT = Path(__file__).parents[1]
README = ROOT / "plugins/triton/README.md"
SCRIPT = ROOT / "tests/plugins/triton/compile_resources.py"
GPUS = {
    "80": ("A100", "ampere"),
    "86": ("A10, RTX 30", "ada"),
    "89": ("L4, L40, RTX 40", "ada"),
    "90": ("H100, H200", "hopper"),
    "100": ("B200", "blackwell"),
    "120": ("RTX 50", "ada"),
    "gfx942": ("MI300", "small"),
    "gfx1100": ("RX 7900", "small"),
}
"""By architecture: GPUs, and their kind in the device table."""

Usage = dict[str, Any]


def compile_for(architecture: str) -> list[Usage]:
    """What every kernel takes. Raises ``RuntimeError`` with what the compiler said where one does not compile."""
    command = [sys.executable, str(SCRIPT), architecture, GPUS[architecture][1]]
    done = subprocess.run(
        command, env=environment_with({"TRITON_INTERPRET": "0"}), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{architecture}: {done.stderr[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def make_table(found: dict[str, list[Usage]]) -> str:
    """A row a kernel, a column an architecture: the most of each over all launches."""
    most: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for architecture, usages in found.items():
        for one in usages:
            cell = most[one["kernel"]].setdefault(architecture, [0, 0, 0])
            cell[:] = map(max, cell, (one["registers"], one["shared"], one["spilled"]))
    lines = [
        f"| kernel | {' | '.join(_heading(architecture) for architecture in found)} |",
        "|---" * (len(found) + 1) + "|",
    ]
    for kernel in sorted(most):
        cells = (_cell(most[kernel].get(architecture)) for architecture in found)
        lines.append(f"| `{kernel}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _heading(architecture: str) -> str:
    return architecture if architecture.startswith("gfx") else f"sm_{architecture}"


def _cell(most: list[int] | None) -> str:
    if most is None:
        return "–"
    registers, shared, spilled = most
    return f"{registers} · {round(shared / 1024, 1):g}" + (f" · **{spilled}**" if spilled else "")


def main() -> None:
    table = make_table({architecture: compile_for(architecture) for architecture in GPUS})
    print(table)
    if "--write" in sys.argv[1:]:
        text = README.read_text(encoding="utf-8")
        pattern = re.compile(r"(<!-- gpu code -->\n).*?(<!-- /gpu code -->)", re.DOTALL)
        README.write_text(pattern.sub(lambda found: found[1] + table + found[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
