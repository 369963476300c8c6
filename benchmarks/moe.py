"""A mixture of experts: the native kernel against the plain loop over its experts, in one run, beside the bound.

    python benchmarks/moe.py [--shapes qwen3-moe-32x4,qwen3-moe-64x8] [--rows 1,7,16] [--prompt 1024] [--repeats 5]

Both ways run on one loaded model, in turns, so that what else the machine does reaches both: the loop has every layer's
parts apart and an expert's two products native, as layers without a kernel of their own run. The bound of a step is
the time in which this machine reads, at the rate measured beside it, the weights that its rows need, where they spread
evenly over the experts; that of a prompt is its arithmetic. Measure on an idle machine: members of a team whose threads
have to wait for a core hold up all others; where it is not idle, OMP_NUM_THREADS=1 still gives ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from checkpoints import SHAPES, head_dim, make_checkpoint
from machine import Limits, measure_limits

from lsv import LLM, SamplingParams
from lsv_cpu import arena
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.moe import MoE

SPARSE = [name for name, shape in SHAPES.items() if "num_experts" in shape]
Seconds = dict[str, list[float]]


def main() -> None:
    options = read_options()
    for shape in options.shapes:
        checkpoint = make_checkpoint(shape, options.folder)
        warm_files(checkpoint)
        began = time.perf_counter()
        llm = LLM(
            str(checkpoint), skip_tokenizer_init=True, max_model_len=options.prompt + options.steps + 64,
            max_num_batched_tokens=max(options.prompt, 64), quantization=options.quantization,
        )  # fmt: skip
        took = time.perf_counter() - began
        print(f"{shape}: loaded in {took:.1f} s; a bare copy takes {copy_seconds(checkpoint):.1f} s", flush=True)
        measure(llm, shape, options)
        llm.close()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=SPARSE)
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 7, 16])
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the long prompt; 0 leaves it out")
    parser.add_argument("--steps", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quantization", help="an online format; its bytes' bound is not computed")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "lsv-benchmarks")
    return parser.parse_args()


def warm_files(checkpoint: Path) -> None:
    """Read them once, so that loading is not a measure of the disk."""
    for path in checkpoint.glob("*.safetensors"):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def copy_seconds(checkpoint: Path, sample: int = 1 << 30) -> float:
    """What a bare copy of its bytes into new memory takes here, by those of a sample: what no way of loading can save.

    Of a virtual machine that gives free memory back to its host, new memory is by far the slower part.
    """
    read, size = 0, sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    into, piece = arena.Arena().take(sample), torch.empty(1 << 20, dtype=torch.uint8)
    began = time.perf_counter()
    for path in checkpoint.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while read + len(piece) <= sample and file.readinto(piece.numpy()) == len(piece):
                into[read : read + len(piece)] = piece
                read += len(piece)
    return (time.perf_counter() - began) / read * size


def measure(llm: LLM, shape: str, options: argparse.Namespace) -> None:
    model = llm._client._engine._executor._worker.live.runner.model
    jobs: dict[str, tuple[Callable[[], float], Callable[[Limits], float] | None]] = {
        f"a step of {rows} rows": (
            lambda rows=rows: step_seconds(llm, rows, options.steps),
            lambda limits, rows=rows: step_bytes(SHAPES[shape], rows) / limits["read_gbps"] / 1e9,
        )
        for rows in options.rows
    }
    if options.prompt:
        jobs[f"a prompt of {options.prompt} tokens"] = (
            lambda: prompt_seconds(llm, options.prompt),
            lambda limits: prompt_flops(SHAPES[shape], options.prompt) / limits["bf16_tflops"] / 1e12,
        )
    for name, (job, bound) in jobs.items():
        job()
        limits, found = [], {"native": [], "loop": []}
        for _ in range(options.repeats):
            limits.append(measure_limits(threads()))
            found["native"].append(job())
            with plain_loop(model):
                found["loop"].append(job())
        report(name, found, [bound(one) for one in limits] if bound and not options.quantization else [])


def threads() -> int:
    from lsv_cpu import native

    library = native.library()
    return library.lsv_team_size() if library else torch.get_num_threads()


@contextmanager
def plain_loop(model: torch.nn.Module) -> Iterator[None]:
    """Meanwhile layers and experts run by their references, whose parts keep their kernels."""
    held = [module for module in model.modules() if isinstance(module, (DecoderLayer, MoE))]
    kernels = [module.__dict__.pop("forward") for module in held]
    try:
        yield
    finally:
        for module, forward in zip(held, kernels, strict=True):
            module.__dict__["forward"] = forward


def step_seconds(llm: LLM, rows: int, steps: int) -> float:
    """A step of so many rows: answers of ``steps`` tokens less answers of one."""
    prompts = make_prompts(rows, 16)
    return (answer_seconds(llm, prompts, steps + 1) - answer_seconds(llm, prompts, 1)) / steps


def prompt_seconds(llm: LLM, tokens: int) -> float:
    return answer_seconds(llm, make_prompts(1, tokens), 1)


def make_prompts(count: int, tokens: int) -> list[dict[str, list[int]]]:
    rng = random.Random(0)
    return [{"prompt_token_ids": [rng.randrange(1000, 20000) for _ in range(tokens)]} for _ in range(count)]


def answer_seconds(llm: LLM, prompts: list[Any], tokens: int) -> float:
    llm.reset_prefix_cache()
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    began = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - began


def step_bytes(c: dict, rows: int) -> float:
    """bfloat16 weights that a step reads, if its rows spread evenly over the experts."""
    experts, hidden = c["num_experts"], c["hidden_size"]
    busy = experts * (1 - (1 - c["num_experts_per_tok"] / experts) ** rows)
    layer = attention_weights(c) + hidden * experts + busy * 3 * hidden * c["moe_intermediate_size"]
    return 2 * (c["num_hidden_layers"] * layer + c["vocab_size"] * hidden)


def prompt_flops(c: dict, tokens: int) -> float:
    """Of the products with weights; attention's own are left out."""
    hidden = c["hidden_size"]
    experts = c["num_experts"] * hidden + c["num_experts_per_tok"] * 3 * hidden * c["moe_intermediate_size"]
    return 2 * tokens * c["num_hidden_layers"] * (attention_weights(c) + experts)


def attention_weights(c: dict) -> int:
    return 2 * c["hidden_size"] * (c["num_attention_heads"] + c["num_key_value_heads"]) * head_dim(c)


def report(name: str, found: Seconds, bounds: list[float]) -> None:
    native, loop = (statistics.median(found[way]) * 1e3 for way in ("native", "loop"))
    ratio = statistics.median(b / a for a, b in zip(found["native"], found["loop"], strict=True))
    line = f"  {name:24s} native {native:8.1f} ms   loop {loop:8.1f} ms   {ratio:5.2f} x"
    if bounds:
        over = statistics.median(a / b for a, b in zip(found["native"], bounds, strict=True))
        line += f"   bound {statistics.median(bounds) * 1e3:7.1f} ms, native {over:.2f} x of it"
    print(line, flush=True)


if __name__ == "__main__":
    main()
