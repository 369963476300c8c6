"""What these routes have in common: prompts in, what the model pools of them out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from lsv.engine.client import Vector
from lsv.request.params import PoolingParams
from lsv.request.pooling import PoolingTask
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv_api.http.context import Exchange, Served
from lsv_api.openai.sampling import priority_of, tenancy
from lsv_api.records.pooling import PooledRequest
from lsv_api.records.responses import Usage


class EnvelopeFields(TypedDict):
    id: str
    created: int
    model: str
    usage: Usage


def pooling_params(
    body: PooledRequest,
    task: PoolingTask,
    *,
    normalize: bool | None = None,
    dimensions: int | None = None,
    truncated: bool = False,
) -> PoolingParams:
    """The parameters of a request; ``truncated`` says that its prompts have been cut already."""
    return PoolingParams(
        task=task,
        normalize=normalize,
        dimensions=dimensions,
        use_activation=body.use_activation,
        truncate_prompt_tokens=None if truncated else body.truncate_prompt_tokens,
        truncation_side=body.truncation_side or "right",
    )


async def pool_prompts(
    body: PooledRequest,
    exchange: Exchange,
    served: Served,
    prompts: Sequence[Prompt],
    params: PoolingParams,
    *,
    field: str,
) -> tuple[RequestSpec, list[Vector]]:
    """The request as it was admitted, and what the engine makes of each prompt."""
    request = RequestSpec(
        prompts=tuple(prompts),
        pooling=params,
        request_id=f"pool-{exchange.key}",
        priority=priority_of(body),
        trace=exchange.trace,
        **tenancy(exchange, body.cache_salt),
    )
    request = served.admission.admit(request, field=field)
    await exchange.begin(request)
    return request, await served.client.encode(request)


def envelope(exchange: Exchange, served: Served, prefix: str) -> EnvelopeFields:
    """What every answer begins with."""
    tokens = exchange.prompt_tokens
    return EnvelopeFields(
        id=f"{prefix}-{exchange.key}",
        created=exchange.created,
        model=served.name,
        usage=Usage(prompt_tokens=tokens, total_tokens=tokens),
    )
