"""What reading answers costs: nanoseconds a token for the parsers of thoughts and calls, as they are streamed.

    python benchmarks/answer_parsers.py [--against CHECKOUT] [--pairs 10] [--repeats 40]

An answer thinks, writes text and calls a function, in tokens of four characters. ``--against`` also times the
parsers of another checkout. Both run in processes of their own, in turns; the ratios compare the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

TOOLS = {"get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
THOUGHT = "The user asks for the weather of two cities, so I look both up. " * 12
TEXT = "It rains in Bern today, and tomorrow the sun comes out for a while. " * 12
CITY = "a city whose name is long " * 24
CALLS = {
    "hermes": f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{CITY}", "days": 3}}}}\n</tool_call>',
    "qwen3_coder": (
        f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{CITY}\n</parameter>\n</function>\n</tool_call>"
    ),
}
SIZE = 4


def time_here(repeats: int) -> dict[str, float]:
    """Nanoseconds of processor time a token, by parser and part of an answer."""
    from lsv.offers import load_object
    from lsv.text.answer_parser import AnswerForm, Text
    from lsv_parsers.plugin import lsv_reasoning_parsers, lsv_tool_parsers

    loads = {offer.name: offer.load for offer in (*lsv_tool_parsers(), *lsv_reasoning_parsers())}
    form, found = AnswerForm(tools=TOOLS), {}
    for name, call in CALLS.items():
        parts = {"thought": f"<think>{THOUGHT}</think>", "text": TEXT, "call": call}
        for part, answer in parts.items():
            pieces = [answer[at : at + SIZE] for at in range(0, len(answer), SIZE)]
            took = []
            for _ in range(repeats):
                thoughts, calls = load_object(loads["qwen3"])(form), load_object(loads[name])(form)
                began = time.process_time_ns()
                for piece in pieces:
                    for one in thoughts.push(piece):
                        if isinstance(one, Text):
                            calls.push(one.text)
                took.append((time.process_time_ns() - began) / len(pieces))
            found[f"{name}, {part}"] = statistics.median(took)
    return found


def time_checkout(checkout: Path, repeats: int) -> dict[str, float]:
    """The same by the sources of a checkout, in a process of its own."""
    sources = os.pathsep.join(str(checkout / place) for place in ("core", "plugins/parsers"))
    command = [sys.executable, __file__, "--repeats", str(repeats), "--json"]
    said = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": sources}, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(said.stdout)
    return found


def report(own: Sequence[Mapping[str, float]], other: Sequence[Mapping[str, float]]) -> None:
    for name in own[0]:
        mine = statistics.median(run[name] for run in own)
        line = f"{name:24} {mine:8.0f} ns a token"
        if other:
            line += f"   {mine / statistics.median(run[name] for run in other):.3f} times the other"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the folder of another checkout of lsv")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.json:
        print(json.dumps(time_here(given.repeats)))
        return
    here, own, other = Path(__file__).parents[1], [], []
    for _ in range(given.pairs):
        own.append(time_checkout(here, given.repeats))
        if given.against:
            other.append(time_checkout(given.against.resolve(), given.repeats))
    report(own, other)


if __name__ == "__main__":
    main()
