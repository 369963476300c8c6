"""What beam search costs: the same model with as many beams as drawn answers, by turns in one run.

    python benchmarks/beams.py [MODEL] [--width 4] [--tokens 64] [--rounds 5] [--block-size N]

A beam recomputes the part of its text that fills no block of the prefix cache. Only ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import statistics
import time

from lsv import LLM, SamplingParams

PROMPT = "Once upon a time there was a fox who lived by a river."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="lsv-demo")
    parser.add_argument("--width", type=int, default=4, help="beams, and drawn answers")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5, help="how often each kind is measured")
    parser.add_argument("--block-size", type=int, default=None, help="tokens of a block of the KV cache")
    options = parser.parse_args()
    common = {"n": options.width, "max_tokens": options.tokens, "ignore_eos": True}
    kinds = {"drawn": SamplingParams(**common), "beams": SamplingParams(use_beam_search=True, **common)}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    computed: dict[str, int] = {}
    with LLM(options.model, max_model_len=1024, block_size=options.block_size) as llm:
        for _ in range(1 + options.rounds):
            for kind, params in kinds.items():
                before, began = llm.stats.tokens_total, time.perf_counter()
                llm.generate(PROMPT, params, use_tqdm=False)
                seconds[kind].append(time.perf_counter() - began)
                computed[kind] = llm.stats.tokens_total - before
        print(f"blocks of {llm.fit.block_size} tokens")
    median = {kind: statistics.median(times[1:]) for kind, times in seconds.items()}  # the first one warms up
    for kind, time_taken in median.items():
        print(f"{kind}: {1000 * time_taken / options.tokens:.2f} ms a token, {computed[kind]} tokens computed")
    print(f"ratio {median['beams'] / median['drawn']:.2f}")


if __name__ == "__main__":
    main()
