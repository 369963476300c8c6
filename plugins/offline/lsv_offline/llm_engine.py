"""``LLMEngine``: prompts in, whole outputs out, one step at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from lsv.engine.orders.adapters import LoadAdapter
from lsv.request.adapter import LoRARequest
from lsv.request.outputs import EmbeddingRequestOutput, RequestOutput
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.prompt import Prompt
from lsv.request.spec import RequestSpec
from lsv.text.prompts import PromptInput, PromptReader
from lsv_base.errors import BadRequest
from lsv_offline.arguments import AskedAdapters, check_kind, list_adapters, refuse_prompt_adapter
from lsv_offline.generation import Generation, vector_output
from lsv_offline.inline_client import InlineClient, StepOutput

Output: TypeAlias = "RequestOutput | EmbeddingRequestOutput"


class LLMEngine:
    """An engine stepped by hand::

    while prompts or engine.has_unfinished_requests():
        engine.add_request(...)
        for output in engine.step(): ...
    """

    def __init__(self, client: InlineClient, prompts: PromptReader) -> None:
        self.client = client
        self._prompts = prompts
        self._generating: dict[str, Generation] = {}
        self._pooling: dict[str, RequestSpec] = {}
        self._asked_adapters = AskedAdapters()

    def add_request(
        self,
        request_id: str,
        prompt: PromptInput | Prompt,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: object = None,
        *,
        priority: int = 0,
    ) -> None:
        """Queue a request. Its times count from ``arrival_time`` of the monotonic clock, or from now.

        Its adapter is loaded unless it was before. Raises ``BadRequest``, also for an id that is in use, or
        ``Overloaded``.
        """
        refuse_prompt_adapter(prompt_adapter_request)
        check_kind(request_id, str, "request_id")
        check_kind(params, (SamplingParams, PoolingParams), "params")
        check_kind(priority, int, "priority")
        if request_id in self._generating or request_id in self._pooling:
            raise BadRequest(f"request {request_id!r} is under way already: choose another id", param="request_id")
        read = self._prompts.read(prompt)
        named: dict[str, Any] = {"request_id": request_id, "priority": priority, "trace": trace_headers or {}}
        if lora_request is not None:
            named["adapter"] = self._load_adapter(lora_request)
        if isinstance(params, SamplingParams):
            params = params.clone()
            asked = RequestSpec(prompts=(read,), sampling=params, **named)
            self._generating[request_id] = Generation(asked, params, self.client.add(asked, arrival_time))
            return
        asked = RequestSpec(prompts=(read,), pooling=params, **named)
        self._pooling[request_id] = self.client.add(asked, arrival_time)

    def _load_adapter(self, asked: LoRARequest) -> str:
        """The name of an adapter that is served now; another one of its name gives way."""
        (checked,) = list_adapters(asked, 1)
        assert checked is not None
        if self._asked_adapters.is_new(checked, self.client.adapters):
            self.client.order(LoadAdapter(checked.name, checked.path, replace=True))
        self._asked_adapters.note(checked)
        return checked.name

    def step(self, *, finished_only: bool = False) -> list[Output]:
        """One step: the answers that have grown, or only those that are complete.

        An output whose request failed has an ``error``, and is the last of that request. Raises ``EngineDied`` when all
        requests failed.
        """
        grown: dict[str, Output] = {}
        for found in self.client.step():
            output = self._take(found, finished_only)
            if output is not None:
                grown[found.request_id] = output
        return list(grown.values())

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Abort requests; unknown ids are ignored."""
        check_kind(request_id, (str, Iterable), "request_id")
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        self.client.abort(ids)
        for name in ids:
            self._generating.pop(name, None)
            self._pooling.pop(name, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.client.unfinished)

    def has_unfinished_requests_for_virtual_engine(self, virtual_engine: int) -> bool:
        """The same for one of the engines that a pipeline makes of one; there is number 0 alone."""
        return virtual_engine == 0 and self.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        return len(self.client.unfinished)

    def _take(self, found: StepOutput, finished_only: bool) -> Output | None:
        """What a step's output for one request means for its reader."""
        name = found.request_id
        if found.error is not None:
            return self._generating.pop(name).failed(found.error)
        if found.pooled is not None:
            return vector_output(self._pooling.pop(name), found.pooled)
        if found.chunk is None:
            return None
        generation = self._generating[name]
        generation.answers.add(found.chunk)
        finished = generation.answers.finished
        if finished:
            del self._generating[name]
        if finished_only:
            return generation.output() if finished else None
        return generation.update()
