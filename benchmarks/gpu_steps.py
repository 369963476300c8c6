"""Milliseconds of a decoding step on a GPU by the number of rows, and the kernels that they go to.

    python benchmarks/gpu_steps.py [--shape llama-3.1-8b] [--rows 1,64] [--quantization sym_int4] [--kernels 12]

Weights are random. A step is the difference of two answers to the same prompts of 256 tokens, one 64 tokens longer than
the other: greedy, and drawn at temperature 0.8. The kernels are those of torch's profiler over 23 more steps, prompts
of 16 tokens among them. Without a device it ends with 2.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpoints import SHAPES
from gpu_decode import generate
from torch.profiler import ProfilerActivity, profile

from lsv import LLM, plugins
from lsv.offers import PlatformOffer
from lsv.resolve.hardware import explain_absence

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
"""The shape of Llama-3.1-8B."""
ALL_SHAPES: Mapping[str, Mapping[str, Any]] = {"llama-3.1-8b": LLAMA, **SHAPES}
PROMPT, TOKENS, PROFILED = 256, 64, 23
ROUNDS = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--shape", default="llama-3.1-8b", choices=ALL_SHAPES)
    parser.add_argument("--rows", default="1,64", help="numbers of decoding requests")
    parser.add_argument("--quantization")
    parser.add_argument("--kernels", type=int, default=12, help="kernels to name, those that take longest first")
    options = parser.parse_args()
    offer = plugins.load().catalog.find(PlatformOffer, options.platform)
    if not offer.probe():
        print(f"platform {options.platform} has no device here: {explain_absence(offer)}", file=sys.stderr)
        return 2
    rows = [int(number) for number in options.rows.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(ALL_SHAPES[options.shape]), encoding="utf-8")
        with LLM(
            folder, skip_tokenizer_init=True, load_format="dummy", platform=options.platform, dtype="bfloat16",
            max_model_len=4096, max_num_seqs=max(rows), enable_prefix_caching=False,
            quantization=options.quantization,
        ) as llm:  # fmt: skip
            for number in rows:
                print(measure(llm, number), flush=True)
                for line in kernels(llm, number)[: options.kernels]:
                    print(line, flush=True)
    return 0


def measure(llm: LLM, rows: int) -> str:
    generate(llm, PROMPT, 4, rows=rows)
    first, greedy, drawn = (
        min(generate(llm, PROMPT, tokens, rows=rows, temperature=temperature) for _ in range(ROUNDS))
        for tokens, temperature in ((1, 0.0), (1 + TOKENS, 0.0), (1 + TOKENS, 0.8))
    )
    step, step_drawn = (greedy - first) / TOKENS, (drawn - first) / TOKENS
    return (
        f"{rows} rows: a step takes {step * 1e3:.3f} ms, drawn {step_drawn * 1e3:.3f} ms: {rows / step:.0f} tokens/s; "
        f"prompts {first * 1e3:.1f} ms: {rows * PROMPT / first:.0f} tokens/s"
    )


def kernels(llm: LLM, rows: int) -> list[str]:
    """What the device did: microseconds of a step, how often in it, and the name."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.XPU, ProfilerActivity.CPU]) as profiler:
        generate(llm, 16, 1 + PROFILED, rows=rows)
    found = sorted(profiler.key_averages(), key=lambda one: -one.self_device_time_total)
    total = sum(one.self_device_time_total for one in found) / PROFILED
    lines = [
        f"  {one.self_device_time_total / PROFILED:9.1f} us {one.count / PROFILED:6.1f} x {one.key[:90]}"
        for one in found
    ]
    return [f"  {total:9.1f} us of the device", *lines]


if __name__ == "__main__":
    sys.exit(main())
