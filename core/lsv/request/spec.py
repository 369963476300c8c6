"""What is asked of an engine, in one record: it travels from the client through the socket to the scheduler."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.prompt import Prompt


class RequestSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A prompt and what is wanted of it. Exactly one of ``sampling`` and ``pooling`` is given.

    A new field of a request is added here, set by the frontend that knows it, and read where it is needed: in the
    engine as ``request.spec.field``.
    """

    prompt: Prompt
    """What the model reads."""

    sampling: SamplingParams | None = None
    """How answers are generated."""

    pooling: PoolingParams | None = None
    """How the prompt becomes one vector."""

    request_id: str
    """Names the request in logs and records."""

    priority: int = 0
    """Lower goes first, under a scheduling policy that looks at it."""

    salt: bytes = b""
    """Separates tenants in the prefix cache: only requests with the same salt share blocks."""

    timeout: float | None = None
    """Seconds after which the engine aborts the request; None waits for ever."""

    trace: Mapping[str, str] = {}
    """Headers of the distributed trace the request belongs to (W3C ``traceparent``, ``tracestate``). They travel to the
    engine for whoever exports spans there; nothing else depends on them.
    """
