"""LiteLLM: a streamed answer, then a call of a function."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import litellm
from options import connect

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)
    # the part before the slash chooses the API, the server sees what follows
    address = {"model": f"openai/{model}", "api_base": str(client.base_url), "api_key": client.api_key}
    ask = partial(litellm.completion, **address, temperature=0)
    for piece in ask(messages=[{"role": "user", "content": "What is the capital of Spain?"}], stream=True):
        print(piece.choices[0].delta.content or "", end="", flush=True)
    print()
    messages = [{"role": "user", "content": "What is the weather in Bern?"}]
    for call in ask(messages=messages, tools=[WEATHER]).choices[0].message.tool_calls:
        print(f"it calls {call.function.name}({call.function.arguments})")


if __name__ == "__main__":
    main()
