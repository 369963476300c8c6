"""What adapters cost while answers are decoded: streams of the model as it is beside streams of several adapters.

    python benchmarks/adapters.py [--streams 16] [--adapters 8] [--rank 16] [--layers 24] [--tokens 32] [--repeats 3]

Random weights of Qwen2.5-0.5B's shape in bfloat16, adapters on all linear layers, random prompts. One engine serves
all of it by turns; an engine without adapters is measured beside it. The ratios are those of the median times of a
token step; prompts are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from checkpoints import make_checkpoint

from lsv import LLM, LoRARequest, SamplingParams
from lsv_testing.adapters import linear_layers, write_adapter

PROMPT = 16


def step_seconds(llm: LLM, adapters: Sequence[LoRARequest | None], tokens: int) -> float:
    """The median time of a step in which all streams get a token."""
    engine, params = llm.llm_engine, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    for number, adapter in enumerate(adapters):
        ids = [(31 * number + 7 * place) % 1000 for place in range(PROMPT)]
        engine.add_request(str(number), {"prompt_token_ids": ids}, params, lora_request=adapter)
    engine.step()
    times = []
    while engine.has_unfinished_requests():
        began = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"streams": 16, "adapters": 8, "rank": 16, "layers": 24, "tokens": 32, "repeats": 3}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        model = make_checkpoint("qwen2.5-0.5b", folder, options.layers)
        modules = list(linear_layers(model))
        adapters = []
        for number in range(1, options.adapters + 1):
            path = folder / f"adapter{number}"
            write_adapter(path, model, modules, seed=number, rank=options.rank, spread=0.01)
            adapters.append(LoRARequest(path.name, number, str(path)))
        given = {"skip_tokenizer_init": True, "dtype": "bfloat16", "max_model_len": 1024}
        plain = LLM(str(model), **given)
        llm = LLM(str(model), enable_lora=True, max_loras=options.adapters, max_lora_rank=options.rank, **given)
        cases = {
            "1 stream, without": (plain, [None]),
            "1 stream, enabled": (llm, [None]),
            "1 stream, one": (llm, adapters[:1]),
            f"{options.streams} streams, without": (plain, [None] * options.streams),
            f"{options.streams} streams, enabled": (llm, [None] * options.streams),
            f"{options.streams} streams, {options.adapters}": (
                llm, [adapters[n % len(adapters)] for n in range(options.streams)],
            ),
        }  # fmt: skip
        found: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(options.repeats):
            for name, (engine, asked) in cases.items():
                found[name].append(step_seconds(engine, asked, options.tokens))
        names = list(cases)
        for first in (0, 3):
            base = statistics.median(found[names[first]])
            for name in names[first : first + 3]:
                seconds = statistics.median(found[name])
                print(f"{name + ' adapters':32} {1000 * seconds:8.2f} ms a step, {seconds / base:5.2f} x")


if __name__ == "__main__":
    main()
