"""A conversation by Anthropic's Messages: a model calls a function, is told what that gave, and answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from anthropic import Anthropic

QUESTION = "What is the weather in Bern?"
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def get_weather(city: str) -> str:
    return f"sunny, 21 degrees in {city}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://localhost:8000", help="of the server, without /v1")
    parser.add_argument("--model", default="lsv-demo")
    parser.add_argument("--api-key", default="EMPTY")
    given = parser.parse_args(arguments)
    client = Anthropic(base_url=given.url, api_key=given.api_key)
    messages = [{"role": "user", "content": QUESTION}]
    counted = client.messages.count_tokens(model=given.model, tools=[WEATHER], messages=messages)
    print(f"the prompt has {counted.input_tokens} tokens")
    while True:
        with client.messages.stream(
            model=given.model, max_tokens=200, tools=[WEATHER], messages=messages, extra_body={"temperature": 0}
        ) as stream:
            answer = stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        for call in calls:
            print(f"it calls {call.name}({call.input})")
        if answer.stop_reason != "tool_use":
            break
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": get_weather(**call.input)} for call in calls
        ]
        messages.append({"role": "user", "content": results})
    print("".join(block.text for block in answer.content if block.type == "text"))


if __name__ == "__main__":
    main()
