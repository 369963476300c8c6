"""What a shared beginning spares: the same questions with the prefix cache and without, and the same answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

from options import read

from lsv import LLM, SamplingParams

TABLE = "\n".join(f"| {number} | guest {number} | room {number * 7} |" for number in range(30))
PROMPTS = [f"{TABLE}\nWho has room {number * 7}?" for number in (3, 17, 23)]


def main(arguments: Sequence[str] | None = None) -> None:
    given, found = read(__doc__, arguments), []
    for cached in (False, True):
        with LLM(**{**given, "enable_prefix_caching": cached}) as llm:
            began = time.monotonic()
            outputs = [llm.generate([one], SamplingParams(temperature=0.0, max_tokens=8))[0] for one in PROMPTS]
            spared = sum(output.num_cached_tokens for output in outputs)
            print(f"{time.monotonic() - began:.2f} s, {spared} tokens found in the cache")
            found.append([output.outputs[0].text for output in outputs])
    print("the same answers" if found[0] == found[1] else "other answers")


if __name__ == "__main__":
    main()
