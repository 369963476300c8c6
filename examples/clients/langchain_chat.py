"""LangChain's chat models: an answer, then a call of a function, by the OpenAI API and by Ollama's."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from options import connect


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny, 21 degrees in {city}"


def ask(chat: BaseChatModel) -> None:
    print(chat.invoke("What is the capital of Spain?").text)
    reporter = chat.bind_tools([get_weather])
    messages = [HumanMessage("What is the weather in Bern?")]
    messages.append(reporter.invoke(messages))
    for call in messages[-1].tool_calls:
        print(f"it calls {call['name']}({call['args']})")
        messages.append(get_weather.invoke(call))
    print(reporter.invoke(messages).text)


def main(arguments: Sequence[str] | None = None) -> None:
    client, model = connect(__doc__, arguments)
    url = str(client.base_url)
    ask(ChatOpenAI(model=model, base_url=url, api_key=client.api_key, temperature=0))
    ask(ChatOllama(model=model, base_url=url.removesuffix("/v1/"), temperature=0))


if __name__ == "__main__":
    main()
