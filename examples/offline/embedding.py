"""Vectors of texts, and how near they are."""

from __future__ import annotations

from collections.abc import Sequence

from options import read

from lsv import LLM

TEXTS = ["Hello, my name is Mira.", "Good day, I am called Mira.", "The train leaves at nine."]


def main(arguments: Sequence[str] | None = None) -> None:
    with LLM(**read(__doc__, arguments)) as llm:
        vectors = [output.outputs.embedding for output in llm.embed(TEXTS)]
        for text, vector in zip(TEXTS, vectors, strict=True):
            near = sum(a * b for a, b in zip(vectors[0], vector, strict=True))
            print(f"{near:.3f}  {text} ({len(vector)} numbers)")


if __name__ == "__main__":
    main()
