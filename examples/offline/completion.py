"""Four prompts, continued at once."""

from __future__ import annotations

from collections.abc import Sequence

from options import read

from lsv import LLM, SamplingParams

PROMPTS = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]


def main(arguments: Sequence[str] | None = None) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.95)
    with LLM(**read(__doc__, arguments)) as llm:
        for output in llm.generate(PROMPTS, params):
            print(f"{output.prompt!r} {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
