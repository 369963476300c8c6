"""Conversations, by the model's own template; several are answered at once."""

from __future__ import annotations

from collections.abc import Sequence

from options import read

from lsv import LLM, SamplingParams

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
CONVERSATIONS = [
    [SYSTEM, {"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I help you?"},
        {"role": "user", "content": "What is two plus two?"},
    ],
]


def main(arguments: Sequence[str] | None = None) -> None:
    with LLM(**read(__doc__, arguments)) as llm:
        answers = llm.chat(CONVERSATIONS, SamplingParams(temperature=0.0, max_tokens=48))
        for conversation, answer in zip(CONVERSATIONS, answers, strict=True):
            print(f"{conversation[-1]['content']} → {answer.outputs[0].text}")


if __name__ == "__main__":
    main()
