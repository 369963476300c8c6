"""Earlier messages in the form that templates get."""

from __future__ import annotations

from typing import Any

import pytest

from lsv import SamplingParams
from lsv.text.messages import Turn, order_results
from suite.engines import Engines

SHORT = SamplingParams(max_tokens=1)
CALLS, QUESTION = Turn(("a", "b", "c")), Turn()


def result(id: str) -> Turn:
    return Turn(answered=id)


@pytest.mark.parametrize(
    ("turns", "order"),
    [
        ([QUESTION, CALLS, *map(result, "abc"), QUESTION], [0, 1, 2, 3, 4, 5]),
        ([QUESTION, CALLS, *map(result, "cab"), QUESTION], [0, 1, 3, 4, 2, 5]),
        ([CALLS, result("c"), result("z"), result("a")], [0, 3, 2, 1]),
        ([CALLS, result("c"), result(""), result("a")], [0, 3, 2, 1]),
        ([result("b"), result("a"), CALLS, result("b")], [0, 1, 2, 3]),
        ([CALLS, result("b"), QUESTION, result("a")], [0, 1, 2, 3]),
        ([CALLS, result("b"), result("a"), CALLS, result("c"), result("a")], [0, 2, 1, 3, 5, 4]),
        ([Turn(("", "")), result("x"), result("y")], [0, 1, 2]),
        ([], []),
    ],
    ids=[
        "in order",
        "mixed",
        "a foreign one",
        "one without id",
        "before any calls",
        "apart",
        "twice",
        "no ids",
        "none",
    ],
)
def test_results_stand_in_the_order_of_their_calls(turns: list[Turn], order: list[int]) -> None:
    assert order_results(turns) == order


def test_conversations_of_the_offline_api(engine_for: Engines) -> None:
    def call(id: Any, city: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "get_weather", "arguments": {"city": city}}}

    question = {"role": "user", "content": "Bern and Kiel?"}
    calls = {"role": "assistant", "content": "", "tool_calls": [call("1", "Bern"), call("2", "Kiel")]}
    results = [{"role": "tool", "tool_call_id": id, "content": text} for id, text in (("2", "wet"), ("1", "dry"))]
    found = [
        engine_for("lsv-demo", max_model_len=512).chat([question, calls, *some], SHORT, use_tqdm=False)[0].prompt
        for some in (results, results[::-1])
    ]
    assert found[0] == found[1]
    assert str(found[0]).index("dry") < str(found[0]).index("wet")
