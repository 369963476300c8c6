"""The same answers with drafts and without, and their times."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from options import read

from lsv import LLM, SamplingParams

PROMPTS = ["one two three four one two three", "The capital of France is", "Hello, my name is"]
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}
"""Looked up in what there is already; a speculator would be ``{"model": …, "num_speculative_tokens": 3}``."""


def main(arguments: Sequence[str] | None = None) -> None:
    given, found = read(__doc__, arguments), []
    asked = given.pop("speculative_config", None) or DRAFTS
    for drafts in (None, json.loads(asked) if isinstance(asked, str) else asked):
        with LLM(**given, speculative_config=drafts) as llm:
            began = time.monotonic()
            outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.0, max_tokens=24))
            tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
            spent = 1000 * (time.monotonic() - began) / tokens
            print(f"{'with' if drafts else 'without'} drafts: {spent:.1f} ms a token")
            found.append([output.outputs[0].text for output in outputs])
    print("the same answers" if found[0] == found[1] else "other answers")


if __name__ == "__main__":
    main()
