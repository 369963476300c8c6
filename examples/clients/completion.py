"""Texts to continue: two answers to each, with the three likeliest tokens at each place."""

from __future__ import annotations

from collections.abc import Sequence

from options import connect

PROMPT = "The capital of France is"


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)
    answer = client.completions.create(model=model, prompt=PROMPT, n=2, logprobs=3, max_tokens=8, stream=False)
    for choice in answer.choices:
        print(f"{choice.index}: {PROMPT}{choice.text!r}")
        if choice.logprobs is not None and choice.logprobs.top_logprobs is not None:
            print("   first token:", choice.logprobs.top_logprobs[0])


if __name__ == "__main__":
    main()
