"""A conversation with Ollama's own client: streamed, then with a function that the model calls."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import ollama

QUESTION = {"role": "user", "content": "What is the capital of Spain?"}
WEATHER_ASKED = {"role": "user", "content": "What is the weather in Bern?"}
OPTIONS = {"temperature": 0, "num_predict": 64}


def get_weather(city: str) -> str:
    """Get the weather in a city.

    Args:
        city: The city.
    """
    return f"sunny, 21 degrees in {city}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="http://localhost:8000", help="the server; OLLAMA_HOST for other programs")
    parser.add_argument("--model", help="default: the server's first")
    given = parser.parse_args(arguments)
    with ollama.Client(host=given.host) as client:
        model = given.model or client.list().models[0].model
        stream_answer(client, model)
        call_function(client, model)


def stream_answer(client: ollama.Client, model: str) -> None:
    for piece in client.chat(model, [QUESTION], options=OPTIONS, stream=True):
        print(piece.message.content, end="", flush=True)
    print(f"\n{piece.eval_count} tokens in {piece.total_duration / 1e9:.2f} s")


def call_function(client: ollama.Client, model: str) -> None:
    answer = client.chat(model, [WEATHER_ASKED], tools=[get_weather], options=OPTIONS)
    messages = [WEATHER_ASKED, answer.message]
    for call in answer.message.tool_calls or ():
        print(f"it calls {call.function.name}({dict(call.function.arguments)})")
        result = get_weather(**call.function.arguments)
        messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
    print(client.chat(model, messages, tools=[get_weather], options=OPTIONS).message.content)


if __name__ == "__main__":
    main()
