"""A GGUF file, and weights in the host's memory: ``python weights.py --model model.gguf --cpu-offload-gb 4``."""

from __future__ import annotations

from collections.abc import Sequence

from options import read

from lsv import LLM, SamplingParams


def main(arguments: Sequence[str] | None = None) -> None:
    with LLM(**read(__doc__, arguments)) as llm:
        (output,) = llm.generate(["The capital of France is"], SamplingParams(temperature=0.0, max_tokens=8))
        print(output.outputs[0].text)


if __name__ == "__main__":
    main()
