"""What offline calls take beside prompts, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lsv.errors import BadRequest
from lsv.request.params import PoolingParams, SamplingParams

Params = TypeVar("Params", SamplingParams, PoolingParams)


def refuse_adapters(*requests: object) -> None:
    """Raises ``BadRequest`` for anything but None."""
    if any(request is not None for request in requests):
        raise BadRequest("adapters are not served: merge one into its model's weights", param="lora_request")


def list_params(
    given: Params | Sequence[Params] | None, count: int, default: Callable[[], Params], name: str
) -> Sequence[Params]:
    """The parameters of each of ``count`` prompts. Raises ``BadRequest`` for too few, too many or others."""
    if given is None:
        given = default()
    listed = list(given) if isinstance(given, Sequence) else [given] * count
    if len(listed) != count:
        raise BadRequest(f"{count} prompts need as many {name}, got {len(listed)}", param=name)
    kind = SamplingParams if name == "sampling_params" else PoolingParams
    for one in listed:
        if not isinstance(one, kind):
            raise BadRequest(f"{name} must be {kind.__name__}, got {one!r:.100}", param=name)
    return listed
