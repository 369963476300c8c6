"""Write the tables of docs/quantization.md: every format that can be made from a plain checkpoint, by ``lsv eval``.

    python benchmarks/quantization.py [--results DIR] [--parts quality,speed] [--formats none,int8] [--questions 600]

Quality is measured on lsv-demo and its held-out questions, speed on random weights in a shape of 0.5 billion. The
formats are those the installed plugins offer; ``--formats`` measures some of them again. The tables hold what is in the
results' folder, one file a format, with the plain weights to compare with.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from checkpoints import SHAPES, make_checkpoint

from lsv import plugins
from lsv_bench.eval.formats import online_formats
from lsv_bench.eval.result import Evaluation, Run
from lsv_bench.eval.run import UNQUANTISED
from lsv_bench.eval.tables import columns, markdown

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parent / "docs" / "quantization.md"
DEMO = "lsv-demo"
INPUT, OUTPUT = 256, 32
REFERENCE = "reference"


def main() -> None:
    options = read_options()
    options.results.mkdir(parents=True, exist_ok=True)
    formats = [UNQUANTISED, *online_formats(plugins.load().catalog)]
    failed: list[str] = []
    for part in options.parts:
        for name in options.formats or formats:
            failed += [] if measure(part, name, options) else [f"{name} ({part})"]
            write_part(part, [options.results / f"{part}-{one}.json" for one in formats])
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(tempfile.gettempdir()) / "lsv-benchmarks" / "quantization"
    parser.add_argument("--results", type=Path, default=default)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=["quality", "speed"])
    parser.add_argument("--formats", type=lambda text: text.split(","))
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "lsv-benchmarks")
    return parser.parse_args()


def measure(part: str, name: str, options: argparse.Namespace) -> bool:
    """Let ``lsv eval`` measure a format in a process of its own; whether it could."""
    file = options.results / f"{part}-{name}.json"
    fresh = file.with_suffix(".part")
    command = [sys.executable, "-m", "lsv", "eval", *asked(part, name, options), "--json", str(fresh)]
    print(f"{part}: {name}", flush=True)
    if subprocess.run([*command, "--log-level", "warning"], stdout=subprocess.DEVNULL, check=False).returncode:
        return False
    fresh.rename(file)
    return True


def asked(part: str, name: str, options: argparse.Namespace) -> list[str]:
    """The arguments of ``lsv eval``; quality is compared with the plain weights."""
    if part == "speed":
        model = make_checkpoint(options.shape, options.models)
        lengths = ["--input-len", str(INPUT), "--output-len", str(OUTPUT), "--max-model-len", str(INPUT + OUTPUT)]
        return [str(model), "--formats", name, "--speed", *lengths]
    baseline = options.results / f"{part}-{UNQUANTISED}.json"
    against = ["--baseline", str(baseline)] if name != UNQUANTISED else []
    return [DEMO, "--formats", name, "--num-questions", str(options.questions), *against]


def write_part(part: str, files: Sequence[Path]) -> None:
    """Put what has been measured of a part between its marks in the document."""
    evaluations = [msgspec.json.decode(file.read_bytes(), type=Evaluation) for file in files if file.exists()]
    if not evaluations:
        return
    runs = [evaluation.runs[0] for evaluation in evaluations]
    table = columns(runs)
    if part == "speed":
        table["linear layers"] = [served(run) for run in runs]
    text = f"{describe(part, evaluations[0])}\n\n{markdown(table)}"
    marked = rf"(<!-- {part}: begin -->\n).*?(<!-- {part}: end -->)"
    before = DOCUMENT.read_text(encoding="utf-8")
    after, count = re.subn(marked, lambda match: f"{match[1]}{text}{match[2]}", before, flags=re.DOTALL)
    if count != 1:
        sys.exit(f"{DOCUMENT} must hold <!-- {part}: begin --> and <!-- {part}: end --> once")
    DOCUMENT.write_text(after, encoding="utf-8")


def describe(part: str, evaluation: Evaluation) -> str:
    """Where and on what it was measured."""
    machine = evaluation.machine
    sets = ", ".join(machine.instruction_sets)
    where = f"{machine.cpu}, {machine.cores} cores ({sets}), {evaluation.time[:10]}."
    if part == "speed":
        return f"Shape of {Path(evaluation.model).name}, {INPUT} prompt tokens, {OUTPUT} generated; {where}"
    questions, text = evaluation.questions, evaluation.text
    assert questions is not None
    assert text is not None
    return f"{DEMO}, {questions.size} held-out questions and {text.size:,} bytes of held-out text; {where}"


def served(run: Run) -> str:
    """Whether kernels of the platform or plain torch serve the linear layers, and whether layers run as a whole."""
    linear = {op.implementation for op in run.ops if op.op.partition(".")[0] == "linear"}
    fused = any(op.op == "layer" and op.implementation != REFERENCE for op in run.ops)
    if REFERENCE in linear:
        return "plain torch" if len(linear) == 1 else "partly plain torch"
    return "native, whole layers" if fused else "native"


if __name__ == "__main__":
    main()
