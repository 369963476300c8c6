"""The timeline of an engine's steps: what is in it, that it changes nothing, and that it goes away again."""

from __future__ import annotations

import pytest

from lsv import LLM, SamplingParams
from lsv.engine.engine import Engine
from lsv.scheduler.policy import Fcfs
from lsv_offline.timeline import Timeline
from lsv_testing.fakes.engine import FakeExecutor, core_parts, engine_config
from lsv_testing.fakes.text import letters

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.mark.parametrize("depth", [1, 2])
def test_every_step_is_in_it(depth: int) -> None:
    executor = FakeExecutor()
    executor.depth = depth
    with LLM.from_engine(Engine(engine_config(), executor, Fcfs(), parts=core_parts), letters(97)) as llm:
        alone = [output.outputs[0].token_ids for output in llm.generate(["abc", "d"], GREEDY, use_tqdm=False)]
        llm.reset_prefix_cache()
        steps = llm.stats.steps_total
        with llm.timeline() as timeline:
            watched = [output.outputs[0].token_ids for output in llm.generate(["abc", "d"], GREEDY, use_tqdm=False)]
        after = llm.stats.steps_total
        assert watched == alone
        count = len(timeline.events)
        llm.generate(["abc"], GREEDY, use_tqdm=False)
        assert len(timeline.events) == count
    found = [event for event in timeline.events if "rows" in event.get("args", {})]
    assert len(found) == after - steps
    assert found[0]["name"] == "prefill step"
    assert found[0]["args"]["begins"] == 2
    assert {event["tid"] for event in found} == set(range(1, depth + 1))
    assert all(event["dur"] >= 0 for event in found)
    host = [event["name"] for event in timeline.events if event.get("tid") == 0 and event["ph"] == "X"]
    assert set(host) == {"settle and plan", "submit", "wait"}
    assert not isinstance(executor, Timeline)
