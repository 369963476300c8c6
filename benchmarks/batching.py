"""Two ratios from one run: batched against one by one, and one stream against ``transformers.generate``.

    python benchmarks/batching.py [--shape qwen2.5-0.5b] [--requests 16] [--input 128] [--output 64] [--repeats 3]

All three ways run the same prompts on the same random bf16 checkpoint, interleaved; medians are reported.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from checkpoints import SHAPES, make_checkpoint
from transformers import AutoModelForCausalLM

from lsv import LLM, SamplingParams


def main() -> None:
    options = read_options()
    checkpoint = make_checkpoint(options.shape, Path(options.folder))
    rng = random.Random(0)
    prompts = [[rng.randrange(1000, 20000) for _ in range(options.input)] for _ in range(options.requests)]
    llm = LLM(str(checkpoint), skip_tokenizer_init=True, max_model_len=options.input + options.output)
    reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
    ways = {
        "batched": lambda: lsv_rate(llm, prompts, options.output, together=True),
        "one by one": lambda: lsv_rate(llm, prompts[:4], options.output, together=False),
        "transformers": lambda: transformers_rate(reference, prompts[:2], options.output),
    }
    for warm in ways.values():
        warm()
    rates = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, measure in ways.items():
            rates[name].append(measure())
    medians = {name: statistics.median(found) for name, found in rates.items()}
    report(medians, rates, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "lsv-benchmarks"))
    for name, default in (("requests", 16), ("input", 128), ("output", 64), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def lsv_rate(llm: LLM, prompts: list[list[int]], output: int, *, together: bool) -> float:
    """Output tokens per second of greedy answers of full length."""
    llm.reset_prefix_cache()
    params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
    batches = [prompts] if together else [[prompt] for prompt in prompts]
    began = time.perf_counter()
    for batch in batches:
        llm.generate([{"prompt_token_ids": prompt} for prompt in batch], params, use_tqdm=False)
    return len(prompts) * output / (time.perf_counter() - began)


def transformers_rate(model: torch.nn.Module, prompts: list[list[int]], output: int) -> float:
    began = time.perf_counter()
    with torch.inference_mode():
        for prompt in prompts:
            model.generate(
                torch.tensor([prompt]), max_new_tokens=output, min_new_tokens=output, do_sample=False, pad_token_id=0
            )
    return len(prompts) * output / (time.perf_counter() - began)


def report(medians: dict[str, float], rates: dict[str, list[float]], options: argparse.Namespace) -> None:
    for name, rate in medians.items():
        print(f"{name:14s} {rate:8.1f} output tok/s   runs: {', '.join(f'{r:.1f}' for r in rates[name])}")
    print(f"{options.requests} requests batched / one by one: {medians['batched'] / medians['one by one']:.2f}x")
    print(f"one stream, lsv / transformers:  {medians['one by one'] / medians['transformers']:.2f}x")
    print(json.dumps({"options": vars(options), "medians": medians}))


if __name__ == "__main__":
    main()
