"""A model calls a function by the Responses API, gets its result, and answers, event by event."""

from __future__ import annotations

import json
from collections.abc import Sequence

from options import connect

QUESTION = "What is the weather in Bern?"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def get_weather(city: str) -> str:
    return f"sunny, 21 degrees in {city}"


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)
    items = [{"role": "user", "content": QUESTION}]
    while True:
        with client.responses.stream(model=model, input=items, tools=[WEATHER], temperature=0) as events:
            for event in events:
                if event.type == "response.output_text.delta":
                    print(event.delta, end="", flush=True)
            response = events.get_final_response()
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            break
        items += response.output
        for call in calls:
            print(f"it calls {call.name}({call.arguments})")
            result = get_weather(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    print()


if __name__ == "__main__":
    main()
