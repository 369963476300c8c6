"""An agent of Pydantic AI: an answer, then one that needs a function."""

from __future__ import annotations

from collections.abc import Sequence

from options import connect
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    print(f"it calls get_weather({city})")
    return f"sunny, 21 degrees in {city}"


def main(arguments: Sequence[str] | None = None) -> None:
    client, name = connect(__doc__, arguments)
    provider = OpenAIProvider(base_url=str(client.base_url), api_key=client.api_key)
    model = OpenAIChatModel(name, provider=provider, settings={"temperature": 0})
    print(Agent(model).run_sync("What is the capital of Spain?").output)
    print(Agent(model, tools=[get_weather]).run_sync("What is the weather in Bern?").output)


if __name__ == "__main__":
    main()
