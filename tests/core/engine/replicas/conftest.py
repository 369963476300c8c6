"""What tests of replicas in processes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from lsv.engine.replicas.replica_set import ReplicaSet
from lsv.engine.socket_client import SocketClient
from lsv.request.params import SamplingParams
from lsv_testing.fakes.requests import make_spec

LONG = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
SHORT = LONG.replace(max_tokens=8)


async def answer(
    client: ReplicaSet | SocketClient, params: SamplingParams, name: str = "r", ids: Sequence[int] = (1, 2, 3)
) -> list[int]:
    request = make_spec(ids, params, request_id=name)
    return [token for chunk in [chunk async for chunk in client.generate(request)] for token in chunk.ids]


async def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, "it never came true"
        await asyncio.sleep(0.01)


def states(client: ReplicaSet) -> set[str]:
    return {one.status.state for one in client.replicas}
