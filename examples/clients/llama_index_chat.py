"""LlamaIndex: an answer, then a call of a function."""

from __future__ import annotations

from collections.abc import Sequence

from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from options import connect


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    print(f"it calls get_weather({city})")
    return f"sunny, 21 degrees in {city}"


def main(arguments: Sequence[str] | None = None) -> None:
    client, name = connect(__doc__, arguments)
    model = OpenAILike(
        model=name,
        api_base=str(client.base_url),
        api_key=client.api_key,
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0,
    )
    print(model.complete("What is the capital of Spain?"))
    print(model.predict_and_call([FunctionTool.from_defaults(get_weather)], "What is the weather in Bern?"))


if __name__ == "__main__":
    main()
