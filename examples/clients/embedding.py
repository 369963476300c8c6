"""Vectors of texts, and how near they are."""

from __future__ import annotations

from collections.abc import Sequence

from options import connect

TEXTS = ["Hello, my name is Mira.", "Good day, I am called Mira.", "The train leaves at nine."]


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)
    vectors = [one.embedding for one in client.embeddings.create(model=model, input=TEXTS).data]
    for text, vector in zip(TEXTS, vectors, strict=True):
        near = sum(a * b for a, b in zip(vectors[0], vector, strict=True))
        print(f"{near:.3f}  {text} ({len(vector)} numbers)")


if __name__ == "__main__":
    main()
