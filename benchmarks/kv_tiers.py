"""What a beginning costs that is kept behind the device: computed, from host memory, and from files after a restart.

    python benchmarks/kv_tiers.py [--tokens 4096] [--layers 24] [--repeats 3]

Random weights of Qwen2.5-0.5B's shape in bfloat16, one request at a time. Its time is that to the first token. The
cache has room for one prompt, so that another one evicts it. Medians, and how many times less than computing that is.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from checkpoints import make_checkpoint

from lsv import LLM, SamplingParams


def first_token(llm: LLM, tokens: int, seed: int) -> tuple[float, int]:
    """Seconds until the first token of a prompt, and how many of its tokens were cached."""
    ids = [(7919 * place * (seed + 1) + seed) % 100_003 for place in range(tokens)]
    began = time.perf_counter()
    (answer,) = llm.generate(
        [{"prompt_token_ids": ids}], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), use_tqdm=False
    )
    return time.perf_counter() - began, answer.num_cached_tokens or 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"tokens": 4096, "layers": 24, "repeats": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = str(make_checkpoint("qwen2.5-0.5b", folder, options.layers))
        blocks = -(-(options.tokens + 64) // 16) + 8
        given = {
            "skip_tokenizer_init": True, "dtype": "bfloat16", "max_model_len": options.tokens + 64, "block_size": 16,
            "num_gpu_blocks_override": blocks, "max_num_seqs": 1,
        }  # fmt: skip
        times: dict[str, list[float]] = {}

        def measure(what: str, llm: LLM, seed: int) -> None:
            seconds, cached = first_token(llm, options.tokens, seed)
            assert (cached > 0) == (what != "computed"), f"{what}: {cached} tokens were cached"
            times.setdefault(what, []).append(seconds)
            print(f"{what}: {seconds:.3f} s, {cached} tokens were cached", flush=True)

        with LLM(model, **given, kv_offload_gib=1.0) as llm:
            first_token(llm, 64, 99)
            for seed in range(options.repeats):
                measure("computed", llm, seed)
            for seed in range(options.repeats):
                measure("host memory", llm, seed)
        kept = {**given, "kv_offload_path": str(folder / "kept")}
        with LLM(model, **kept) as llm:
            for seed in range(options.repeats):
                measure("computed", llm, seed)
        with LLM(model, **kept) as llm:
            first_token(llm, 64, 99)
            for seed in range(options.repeats):
                measure("files", llm, seed)
    medians = {what: statistics.median(seconds) for what, seconds in times.items()}
    for what, seconds in medians.items():
        print(f"{what:12} {1000 * seconds:9.1f} ms to the first token  {medians['computed'] / seconds:6.1f} ×")


if __name__ == "__main__":
    main()
