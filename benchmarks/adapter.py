"""The adapter for transformers' models against its native twin: one checkpoint, both ways, in one run.

    python benchmarks/adapter.py [--shape llama-0.3b] [--rows 1,16] [--prompt 1024] [--repeats 5] [--profile native]

Both are loaded and take turns, so that what else the machine does reaches both. The ratio is that of a turn's pair, and
its median counts. Measure on an idle machine; where it is not idle, OMP_NUM_THREADS=1 still gives ratios.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from checkpoints import SHAPES, make_checkpoint
from moe import prompt_seconds, step_seconds, warm_files

from lsv import LLM

WAYS = {"native": "native", "adapter": "transformers"}
"""What each is called, and the option model_impl for it."""


def main() -> None:
    options = read_options()
    checkpoint = make_checkpoint(options.shape, options.folder)
    warm_files(checkpoint)
    engines = {way: open_engine(checkpoint, asked, options) for way, asked in WAYS.items()}
    jobs: dict[str, Callable[[LLM], float]] = {
        f"a step of {rows} rows": lambda llm, rows=rows: step_seconds(llm, rows, options.steps) for rows in options.rows
    }
    if options.prompt:
        jobs[f"a prompt of {options.prompt} tokens"] = lambda llm: prompt_seconds(llm, options.prompt)
    for name, job in jobs.items():
        if options.profile:
            profile(name, job, engines[options.profile])
        else:
            compare(name, job, engines, options.repeats)
    for llm in engines.values():
        llm.close()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-0.3b", choices=SHAPES)
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 16])
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the long prompt; 0 leaves it out")
    parser.add_argument("--steps", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", choices=WAYS, help="say where the time of one goes, instead of comparing")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "lsv-benchmarks")
    return parser.parse_args()


def open_engine(checkpoint: Path, asked: str, options: argparse.Namespace) -> LLM:
    return LLM(
        str(checkpoint), model_impl=asked, skip_tokenizer_init=True, num_gpu_blocks_override=2048,
        max_model_len=options.prompt + options.steps + 64, max_num_batched_tokens=max(options.prompt, 64),
    )  # fmt: skip


def compare(name: str, job: Callable[[LLM], float], engines: dict[str, LLM], repeats: int) -> None:
    for llm in engines.values():
        job(llm)
    turns = [{way: job(llm) for way, llm in engines.items()} for _ in range(repeats)]
    native, adapter = (statistics.median(turn[way] for turn in turns) * 1e3 for way in WAYS)
    ratio = statistics.median(turn["adapter"] / turn["native"] for turn in turns)
    print(f"  {name:24s} native {native:8.1f} ms   adapter {adapter:8.1f} ms   {ratio:5.2f} x", flush=True)


def profile(name: str, job: Callable[[LLM], float], llm: LLM) -> None:
    job(llm)
    with cProfile.Profile() as found:
        job(llm)
    print(name)
    pstats.Stats(found).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
