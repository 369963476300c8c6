"""What offline calls take beside prompts, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from lsv.errors import BadRequest
from lsv.request.adapter import LoRARequest
from lsv.request.params import PoolingParams, SamplingParams

Params = TypeVar("Params", SamplingParams, PoolingParams)


def refuse_adapters(*requests: object) -> None:
    """Raises ``BadRequest`` for anything but None."""
    if any(request is not None for request in requests):
        raise BadRequest("such adapters are not served; those of generate, chat and encode are", param="lora_request")


def list_adapters(given: LoRARequest | Sequence[LoRARequest | None] | None, count: int) -> Sequence[LoRARequest | None]:
    """The adapter of each of ``count`` prompts. Raises ``BadRequest`` for too few, too many or others."""
    listed = list(given) if isinstance(given, Sequence) else [given] * count
    if len(listed) != count:
        raise BadRequest(f"{count} prompts need as many lora_request, got {len(listed)}", param="lora_request")
    for one in listed:
        if one is not None and not isinstance(one, LoRARequest):
            raise BadRequest(f"lora_request must be LoRARequest, got {one!r:.100}", param="lora_request")
    return listed


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
