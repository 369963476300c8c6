"""An agent of OpenAI's Agents SDK that looks up the weather, by the Responses API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI
from options import connect

QUESTION = "What is the weather in Bern?"


@function_tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    print(f"it calls get_weather({city})")
    return f"sunny, 21 degrees in {city}"


async def ask(url: str, key: str, model: str) -> str:
    async with AsyncOpenAI(base_url=url, api_key=key) as client:
        agent = Agent(
            name="Reporter",
            tools=[get_weather],
            model=OpenAIResponsesModel(model=model, openai_client=client),
            model_settings=ModelSettings(temperature=0),
        )
        # the second request names the response to the first one instead of repeating it
        result = await Runner.run(
            agent, QUESTION, auto_previous_response_id=True, run_config=RunConfig(tracing_disabled=True)
        )
    return str(result.final_output)


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)
    with client:
        print(asyncio.run(ask(str(client.base_url), client.api_key, model)))


if __name__ == "__main__":
    main()
