"""A model calls a function, is told what that gave, and answers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from options import connect

QUESTION = "What is the weather in Bern?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def get_weather(city: str) -> str:
    return f"sunny, 21 degrees in {city}"


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)
    messages = [{"role": "user", "content": QUESTION}]
    while True:
        answer = client.chat.completions.create(model=model, messages=messages, tools=[WEATHER], temperature=0)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            print(f"it calls {call.function.name}({call.function.arguments})")
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(message.content)


if __name__ == "__main__":
    main()
