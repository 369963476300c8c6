"""How often the right functions are called and results read: ``python -m demo_training.functions.evaluate``.

Held-out cases are sent through the OpenAI client to a server, ``lsv serve lsv-demo``, with ``tool_choice="auto"``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from openai import AsyncOpenAI

from demo_training.evaluate import show
from demo_training.functions.conversations import Case, cases

Table = dict[str, tuple[int, int]]
"""Right answers and cases by kind."""


def expected(case: Case) -> tuple[str, list[tuple[str, Any]]]:
    """The answer's text, and its calls by name and arguments."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in case.answer.get("tool_calls", ())]
    return case.answer["content"] or "", calls


def as_request(case: Case) -> dict[str, Any]:
    """What the client sends; arguments in the history are JSON texts there."""
    messages = json.loads(json.dumps(case.messages))
    for call in (call for message in messages for call in message.get("tool_calls", ())):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    thinking = {"chat_template_kwargs": {"enable_thinking": bool(case.thought)}}
    return {"messages": messages, "tools": case.tools, "tool_choice": "auto", "temperature": 0, "extra_body": thinking}


def right(case: Case, message: Any) -> bool:
    """Whether text and calls are as expected; a thought must be there where it was asked for, and only there."""
    try:
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    except ValueError:
        return False
    thought = getattr(message, "reasoning_content", None)
    return ((message.content or "").strip(), calls) == expected(case) and bool(thought) == bool(case.thought)


async def ask(asked: list[Case], url: str, model: str = "lsv-demo", at_once: int = 16) -> list[Any]:
    """The message that came back for each case."""
    gate = asyncio.Semaphore(at_once)
    async with AsyncOpenAI(base_url=url, api_key="EMPTY", max_retries=0) as client:

        async def answer(case: Case) -> Any:
            async with gate:
                found = await client.chat.completions.create(model=model, max_tokens=200, **as_request(case))
            return found.choices[0].message

        return await asyncio.gather(*(answer(case) for case in asked))


def score(asked: list[Case], messages: list[Any]) -> Table:
    """Right answers and cases, by kind and over "all"."""
    table: Table = {}
    for case, message in zip(asked, messages, strict=True):
        for row in (case.kind, "all"):
            hits, total = table.get(row, (0, 0))
            table[row] = (hits + right(case, message), total + 1)
    return table


def main() -> None:
    """Send held-out cases to a server and print how many come back right, by kind."""
    parser = argparse.ArgumentParser(prog="python -m demo_training.functions.evaluate", description=main.__doc__)
    parser.add_argument("--url", default="http://localhost:8000/v1")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shipped", action="store_true", help="offer only the calculator and weather of the web page")
    parser.add_argument("--misses", action="store_true", help="print every wrong answer")
    options = parser.parse_args()
    asked = cases(options.count, options.seed, options.shipped)
    messages = asyncio.run(ask(asked, options.url))
    if options.misses:
        for case, message in zip(asked, messages, strict=True):
            if not right(case, message):
                print(f"{case.kind}: {case.messages[-1]['content']!r} -> {message!r}, not {expected(case)!r}")
    print(show(score(asked, messages)))


if __name__ == "__main__":
    main()
