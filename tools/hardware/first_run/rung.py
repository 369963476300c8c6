"""``python rung.py OPTIONS``: an engine made from a JSON object of settings answers, in one line of JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from lsv import LLM, SamplingParams
from lsv_base.errors import LsvError

PROMPTS = ("Who lives in the house?", "Lena is", "The capital of France is", "One, two, three,")
TOKENS = 24
MARK = "first-run: "
"""Begins the line with the result."""


def main(options: dict[str, Any]) -> int:
    began = time.monotonic()
    try:
        with LLM("lsv-demo", **options) as llm:
            ready = time.monotonic() - began
            print(MARK + json.dumps({"ready": ready, **_answer(llm)}), flush=True)
    except LsvError as error:
        print(MARK + json.dumps({"refused": error.message}), flush=True)
        return error.exit_code
    return 0


def _answer(llm: LLM) -> dict[str, Any]:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, logprobs=2)
    answers = [answer.outputs[0] for answer in llm.generate(list(PROMPTS), params, use_tqdm=False)]
    config, fit = llm.config, llm.fit
    return {
        "tokens": [list(answer.token_ids) for answer in answers],
        "margins": [[_margin(entries) for entries in answer.logprobs or ()] for answer in answers],
        "platform": config.platform,
        "attention": config.attention,
        "dtype": config.dtype,
        "blocks": fit.num_blocks,
        "ops": {op.op: op.implementation for op in fit.ops},
    }


def _margin(entries: Mapping[int, Any]) -> float:
    """How much likelier the best token is than the second, among them and the chosen one."""
    best, second, *_ = sorted((entry.logprob for entry in entries.values()), reverse=True)
    return float(best - second)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
