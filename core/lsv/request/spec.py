"""What is asked of an engine, in one record: it travels from the client through the socket to the scheduler."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.thinking import Thinking


class RequestSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Prompts and what is wanted of each. Exactly one of ``sampling`` and ``pooling`` is given.

    Each prompt has ``candidates`` sequences. They are numbered prompt by prompt: sequence ``i`` is candidate
    ``i % candidates`` of prompt ``i // candidates``.

    A new field of a request is added here, set by the frontend that knows it, and read where it is needed: in the
    engine as ``request.spec.field``.
    """

    prompts: tuple[Prompt, ...]
    """What the model reads: at least one prompt. Several stand in line together, as one request."""

    sampling: SamplingParams | None = None
    """How answers are generated."""

    pooling: PoolingParams | None = None
    """How the prompt becomes one vector."""

    thinking: Thinking | None = None
    """How answers think before they begin; given where their form holds from there on, or their thoughts have a budget.
    """

    request_id: str
    """Names the request in logs and records."""

    priority: int = 0
    """Lower goes first among the tenant's requests, if the scheduling policy uses priorities."""

    priority_at_least: int = 0
    """The lowest priority that counts against other tenants. A lower priority counts as this one."""

    adapter: str = ""
    """The name of the adapter that the model's layers go through; empty for the model as it is."""

    salt: bytes = b""
    """Separates tenants in the prefix cache: only requests with the same salt share blocks."""

    tenant: str = ""
    """Whose request it is: tenants with requests under way share the engine fairly."""

    weight: float = 1.0
    """How large the tenant's share is beside those of the others."""

    timeout: float | None = None
    """Seconds after which the engine aborts the request; None waits for ever."""

    hand_on: bool = False
    """Whether another engine will fetch what this one computes of the prompt."""

    kv_peer: str = ""
    """The engine that has computed the prompt, as ``lsv.transports.exchange.join_address`` writes it: what that keeps
    is fetched before the request begins. Empty where there is none.
    """

    kv_pending: bool = False
    """Whether that engine is still computing the prompt, or about to: what it keeps is fetched as it comes."""

    trace: Mapping[str, str] = {}
    """Headers of the distributed trace the request belongs to (W3C ``traceparent``, ``tracestate``). They travel to the
    engine for whoever exports spans there; nothing else depends on them.
    """

    preparing: float = 0.0
    """Seconds that it took to fetch and decode its media before it was made; for whoever exports spans."""

    @property
    def guided(self) -> bool:
        """Whether something says from token to token what answers may go on with."""
        return self.thinking is not None or (self.sampling is not None and self.sampling.structured_outputs is not None)

    @property
    def searched(self) -> bool:
        """Whether its answers are found by a beam search."""
        return self.sampling is not None and self.sampling.use_beam_search

    @property
    def prompt(self) -> Prompt:
        """The prompt of a request that has only one; of several, the first."""
        return self.prompts[0]

    @property
    def candidates(self) -> int:
        """How many sequences are computed for each prompt."""
        return 1 if self.sampling is None else self.sampling.candidates

    @property
    def size(self) -> int:
        """How many sequences are computed in all."""
        return len(self.prompts) * self.candidates

    @property
    def width(self) -> int:
        """How many sequences are computed at a time; more than ``size`` where a beam search drops some."""
        return len(self.prompts) * (1 if self.sampling is None else self.sampling.beam_width)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, those of texts to encode among them."""
        items = (item for prompt in self.prompts for item in prompt.media if item.modality == "text")
        return sum(len(prompt.ids) for prompt in self.prompts) + sum(item.count for item in items)

    def prompt_of(self, index: int) -> Prompt:
        """The prompt of a sequence."""
        return self.prompts[index // self.candidates]
