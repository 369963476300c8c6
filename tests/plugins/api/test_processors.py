"""What requests tell the logits processors of a server, and what ends an answer that only repeats itself."""

from __future__ import annotations

import msgspec
import pytest

from lsv.plugins.logits_processors import BATCHED
from lsv.request.repetition import RepetitionDetectionParams
from lsv_testing.fakes.client import FakeClient, fake_config


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_arguments_reach_the_processors_of_a_server(start, route):
    config = msgspec.structs.replace(fake_config(), logits_processors=("mine:One",))
    site = await start(FakeClient(config))
    assert (await getattr(site, route)(vllm_xargs={"size": 3})).status_code == 200
    assert site.engine.requests[-1].sampling.extra_args == {"size": 3}
    params = site.engine._admit(site.engine.requests[-1]).sampling
    assert params.logits_processors[BATCHED].extra_args == {"size": 3}
    assert (await getattr(site, route)()).status_code == 200
    assert site.engine.requests[-1].sampling.extra_args is None


async def test_arguments_that_nobody_reads_are_refused(start):
    site = await start()
    reply = await site.chat(vllm_xargs={"size": 3})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "vllm_xargs")
    assert "--logits-processors" in reply.json()["error"]["message"]
    assert (await site.chat(vllm_xargs={})).status_code == 200


async def test_repetitions_that_end_an_answer(start):
    site = await start()
    asked = {"max_pattern_size": 8, "min_count": 3}
    assert (await site.chat(repetition_detection=asked)).status_code == 200
    assert site.engine.requests[-1].sampling.repetition_detection == RepetitionDetectionParams(**asked)
    reply = await site.chat(repetition_detection={"max_pattern_size": 8})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "repetition_detection")
