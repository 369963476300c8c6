"""Requests for tests: as a client sends them, and as a scheduler gets them without a client that admits them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lsv.request.group import RequestGroup
from lsv.request.media import Media, Positions
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.request import Request
from lsv.request.spec import RequestSpec


def make_spec(
    ids: Sequence[int],
    params: SamplingParams | PoolingParams,
    *,
    request_id: str = "r",
    media: tuple[Media, ...] = (),
    positions: Positions | None = None,
    **given: Any,
) -> RequestSpec:
    """What a client is asked; ``given`` are further fields of ``RequestSpec``."""
    return RequestSpec(
        prompts=(Prompt(ids=tuple(ids), media=media, positions=positions),),
        sampling=params if isinstance(params, SamplingParams) else None,
        pooling=params if isinstance(params, PoolingParams) else None,
        request_id=request_id,
        **given,
    )


def make_request(
    id: int, ids: Sequence[int], *, media: tuple[Media, ...] = (), positions: Positions | None = None, **given: Any
) -> Request:
    """A request as a scheduler gets it; ``given`` are further fields of ``RequestSpec`` or arguments of ``Request``."""
    prompt = Prompt(ids=tuple(ids), media=media, positions=positions)
    asked = {name: given.pop(name) for name in RequestSpec.__struct_fields__ if name in given}
    return Request(id, RequestSpec(prompts=(prompt,), request_id=f"r{id}", **asked), **given)


class GivenGroup(RequestGroup):
    """A group of requests that a test has made: all sequences of one spec."""

    def __init__(self, *requests: Request) -> None:
        first = requests[0]
        super().__init__(first.id, first.spec, arrival=first.arrival)
        assert len(requests) == self.size, "these are not all sequences of the group"
        self.requests = requests

    def make(self, index: int) -> Request:
        return self.requests[index]
