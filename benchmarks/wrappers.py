"""What a published wrapper costs to load: beside its language model alone, in turns.

    python benchmarks/wrappers.py [--shapes qwen2.5-0.5b,qwen3-moe-64x8] [--rounds 5]

The wrapper holds the same language model below a prefix, and a tower of 100 tensors. Each load is a process of its own:
seconds from the call of ``LLM`` until it can answer, seconds of processor time, and the most memory the process took.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from checkpoints import make_checkpoint
from safetensors.torch import load_file, save_file

FORMS = ("alone", "wrapped")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", default="qwen2.5-0.5b,qwen3-moe-64x8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(load(given.one)))
        return
    columns = [f"{what} {form}" for what in ("seconds", "CPU seconds", "MiB") for form in (*FORMS, "ratio")]
    print(f"| shape | {' | '.join(columns)} |\n| --- {'| ---: ' * len(columns)}|")
    for shape in given.shapes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            print(compare(shape, Path(folder), given.rounds), flush=True)


def compare(shape: str, folder: Path, rounds: int) -> str:
    alone = make_checkpoint(shape, folder / "alone")
    places = dict(zip(FORMS, (alone, wrap(alone, folder / "wrapped")), strict=True))
    found: dict[str, list[list[float]]] = {form: [] for form in FORMS}
    for number in range(rounds + 1):
        for form in FORMS if number % 2 else reversed(FORMS):
            command = (sys.executable, __file__, "--one", str(places[form]))
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            if number:  # the first round warms the page cache
                found[form].append(json.loads(run.stdout.splitlines()[-1]))
    cells = []
    for values in zip(*(zip(*found[form], strict=True) for form in FORMS), strict=True):
        one, other = (statistics.median(of_form) for of_form in values)
        cells += [f"{one:.2f}", f"{other:.2f}", f"{other / one:.3f}"]
    return f"| {shape} | {' | '.join(cells)} |"


def wrap(alone: Path, folder: Path) -> Path:
    """The language model of a checkpoint below a prefix, beside a tower."""
    folder.mkdir()
    text = json.loads((alone / "config.json").read_text())
    whole = {"architectures": ["WrapperForConditionalGeneration"], "model_type": "wrapper", "text_config": text}
    (folder / "config.json").write_text(json.dumps({**whole, "vision_config": {}}))
    tensors = load_file(alone / "model.safetensors")
    own = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    tower = {f"model.visual.blocks.{number}.weight": torch.zeros(64, 64) for number in range(100)}
    save_file({**own, **tower}, folder / "model.safetensors")
    return folder


def load(folder: str) -> list[float]:
    from lsv import LLM

    start, before = time.perf_counter(), time.process_time()
    with LLM(folder, max_model_len=256, max_num_seqs=4, skip_tokenizer_init=True):
        seconds, used = time.perf_counter() - start, time.process_time() - before
    return [seconds, used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]


if __name__ == "__main__":
    main()
