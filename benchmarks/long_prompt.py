"""What running streams and a newcomer feel when a long prompt enters, with and without ``--max-itl-ms``.

    python benchmarks/long_prompt.py [--shape qwen2.5-0.5b] [--streams 1,4] [--prompt 4096] [--limit 2.0]

For each number of streams: the time between tokens while they run alone, the time to the first token of the long prompt
alone, and both at once, without a limit and with one of ``limit`` times the median that the streams have alone. Random
weights. All in this process, so the times are those of the engine's steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from checkpoints import SHAPES

from lsv import LLM, SamplingParams

STREAM_PROMPT = 128
FOREVER = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True, detokenize=False)
SHORT = FOREVER.replace(max_tokens=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="qwen2.5-0.5b")
    parser.add_argument("--streams", default="1,4", help="numbers of running streams")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the prompt that enters")
    parser.add_argument("--limit", type=float, default=2.0, help="--max-itl-ms as a multiple of the median alone")
    parser.add_argument("--alone", type=int, default=40, help="steps of the streams alone")
    options = parser.parse_args()
    titles = ("streams", "limit ms", "ITL alone", "beside p50", "p99", "p99/alone", "TTFT s", "unloaded", "ratio")
    print("".join(f"{title:>11}" for title in titles))
    for streams in map(int, options.streams.split(",")):
        limit = None
        for _ in range(2):
            alone, beside, ttft, unloaded = measure(options, streams, limit)
            p99 = sorted(beside)[min(len(beside) - 1, int(0.99 * len(beside)))]
            times = (1000 * alone, 1000 * statistics.median(beside), 1000 * p99)
            ratios = (p99 / alone, ttft, unloaded, ttft / unloaded)
            print(
                f"{streams:11d}{limit or 0:11.1f}",
                *(f"{one:10.1f}" for one in times),
                *(f"{one:10.2f}" for one in ratios),
                flush=True,
            )
            limit = 1000 * options.limit * alone


def measure(options: argparse.Namespace, streams: int, limit: float | None) -> tuple[float, list[float], float, float]:
    """Median step of the streams alone, the steps while the prompt enters, and its TTFT there and alone, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPES[options.shape]), encoding="utf-8")
        longest = max(options.prompt + 8, STREAM_PROMPT + 2000)
        with LLM(folder, skip_tokenizer_init=True, load_format="dummy", max_model_len=longest, max_num_seqs=32,
                 max_itl_ms=limit) as llm:  # fmt: skip
            run(llm, "warm", 64)
            unloaded = sum(run(llm, "unloaded", options.prompt))
            for id in range(streams):
                llm.llm_engine.add_request(f"stream {id}", {"prompt_token_ids": ids(id, STREAM_PROMPT)}, FOREVER)
            steps = [step(llm) for _ in range(options.alone)]
            beside = run(llm, "entering", options.prompt)
            llm.llm_engine.abort_request([f"stream {id}" for id in range(streams)])
            return statistics.median(steps[8:]), beside, sum(beside), unloaded


def run(llm: LLM, name: str, prompt: int) -> list[float]:
    """Steps until a new prompt has its first token."""
    llm.llm_engine.add_request(name, {"prompt_token_ids": ids(hash_of(name), prompt)}, SHORT)
    steps = []
    while True:
        began = time.perf_counter()
        news = llm.llm_engine.step()
        steps.append(time.perf_counter() - began)
        if any(one.request_id == name for one in news):
            llm.llm_engine.abort_request(name)
            return steps


def step(llm: LLM) -> float:
    began = time.perf_counter()
    llm.llm_engine.step()
    return time.perf_counter() - began


def ids(seed: int, count: int) -> list[int]:
    """Token ids that share no prefix with those of another seed."""
    return [1000 + (seed * 7919 + place) % 100_000 for place in range(count)]


def hash_of(name: str) -> int:
    return 100 + sum(name.encode())


if __name__ == "__main__":
    main()
