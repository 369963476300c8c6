"""A conversation, streamed as it is written."""

from __future__ import annotations

from collections.abc import Sequence

from options import connect

MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of Spain?"},
]


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)
    stream = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=64, temperature=0, stream=True)
    for event in stream:
        for choice in event.choices:
            print(choice.delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
