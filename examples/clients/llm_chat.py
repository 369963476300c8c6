"""The library of the command ``llm``: a streamed answer, then one that needs a function."""

from __future__ import annotations

from collections.abc import Sequence

from llm.default_plugins.openai_models import Chat
from options import connect


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    print(f"it calls get_weather({city})")
    return f"sunny, 21 degrees in {city}"


def main(arguments: Sequence[str] | None = None) -> None:
    client, name = connect(__doc__, arguments)
    # the command reads the same from extra-openai-models.yaml
    model = Chat(name, key=client.api_key, model_name=name, api_base=str(client.base_url), supports_tools=True)
    for piece in model.prompt("What is the capital of Spain?", temperature=0):
        print(piece, end="", flush=True)
    print()
    print(model.chain("What is the weather in Bern?", tools=[get_weather], options={"temperature": 0}).text())


if __name__ == "__main__":
    main()
