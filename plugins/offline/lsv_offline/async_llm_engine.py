"""``AsyncLLMEngine``: a model in a process of its own, for code that runs an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from lsv.config import EngineConfig
from lsv.engine.connect import open_client
from lsv.engine.orders.adapters import LoadAdapter
from lsv.engine.orders.sleep import Sleep, WakeUp
from lsv.engine.parts.profiles import StartProfile, StopProfile
from lsv.engine.replicas.supervisors import Supervisors
from lsv.media.options import MediaOptions
from lsv.plugins import Plugins
from lsv.request.adapter import LoRARequest
from lsv.request.outputs import EmbeddingOutput, EmbeddingRequestOutput, RequestOutput
from lsv.request.params import PoolingParams, SamplingParams
from lsv.request.spec import RequestSpec
from lsv.resolve import resolve
from lsv.settings import Settings
from lsv.text.prompts import PromptInput, PromptReader
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import BadRequest, ConfigError, EngineDied, LsvError
from lsv_offline.arguments import AskedAdapters, check_kind, list_adapters, refuse_loggers, refuse_prompt_adapter
from lsv_offline.configs import DecodingConfig, ModelConfig, ParallelConfig, SchedulerConfig
from lsv_offline.generation import Generation
from lsv_offline.llm import read_arguments

if TYPE_CHECKING:
    from lsv_offline.engine_args import EngineArguments


Item = TypeVar("Item")


class AsyncLLMEngine:
    """An engine whose requests are generators::

    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="..."))
    async for output in engine.generate("Hello", SamplingParams(), "request-1"): ...

    The model is loaded in a process that is started at once, or one for each replica; the first request waits for it.
    ``close`` or ``shutdown_background_loop`` ends them, as does the end of this one. All requests are for one event
    loop.
    """

    def __init__(self, settings: Settings, loaded: Plugins) -> None:
        """Raises ``ConfigError`` and ``CheckpointError`` for what can be told before the model is loaded."""
        self.config: EngineConfig = resolve(settings, loaded)
        if self.config.replica_nodes is not None:
            raise ConfigError(
                "data_parallel_size_local: replicas on several machines are for lsv serve; here all are on this one",
                param="data_parallel_size_local",
            )
        if self.config.nodes is not None and self.config.nodes.number > 0:
            raise ConfigError(
                "node_rank: AsyncLLMEngine is node 0; the others run lsv serve with --node-rank", param="node_rank"
            )
        self._supervisors = Supervisors(self.config.replicas(), log_level=settings["log_level"].upper())
        self._supervisors.start()
        self._client = open_client(self.config, self._supervisors.addresses, settings, loaded, serves=False)
        media = MediaOptions.from_settings(settings)
        self._prompts = PromptReader(self._client.tokenizer, self.config, loaded.catalog, media)
        self._starting: asyncio.Task[None] | None = None
        self._asked_adapters, self._loading = AskedAdapters(), asyncio.Lock()
        self._running: dict[str, asyncio.Event] = {}
        """What aborts each request."""

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArguments,
        start_engine_loop: bool = True,
        usage_context: object = None,
        stat_loggers: object = None,
    ) -> AsyncLLMEngine:
        """The usual way to make one. Raises ``ConfigError`` and ``CheckpointError``."""
        refuse_loggers(stat_loggers)
        settings, loaded = read_arguments(engine_args.given())
        return cls(settings, loaded)

    # Requests

    async def generate(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: object = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The answers to a prompt as they grow; the last output is ``finished``, or was aborted. ``output_kind`` of the
        parameters says what each output holds.

        Leaving the generator early aborts the request. Raises ``BadRequest``, also for an id that is in use,
        ``EngineDied``, ``RequestFailed`` or what the model could not be loaded for.
        """
        refuse_prompt_adapter(prompt_adapter_request)
        check_kind(sampling_params, SamplingParams, "sampling_params")
        params = sampling_params.clone()
        adapter = await self._load_adapter(lora_request)
        spec = await self._ask(
            prompt, request_id, sampling=params, priority=priority, trace=trace_headers, adapter=adapter
        )
        generation = Generation(spec, params, self._client.admission.admit(spec))
        aborted = self._running[request_id] = asyncio.Event()
        try:
            async with aclosing(_until(aborted, self._client.generate(spec))) as chunks:
                async for chunk in chunks:
                    if chunk.grows:
                        generation.answers.add(chunk)
                        if (output := generation.update()) is not None:
                            yield output
            if aborted.is_set():
                generation.answers.abort()
                if (output := generation.update()) is not None:
                    yield output
        finally:
            del self._running[request_id]

    async def encode(
        self,
        prompt: PromptInput,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        *,
        priority: int = 0,
    ) -> AsyncGenerator[EmbeddingRequestOutput, None]:
        """The vector of a prompt, once it is there. Raises as ``generate`` does."""
        check_kind(pooling_params, PoolingParams, "pooling_params")
        adapter = await self._load_adapter(lora_request)
        spec = await self._ask(
            prompt, request_id, pooling=pooling_params, priority=priority, trace=trace_headers, adapter=adapter
        )
        aborted = self._running[request_id] = asyncio.Event()
        try:
            async with aclosing(_until(aborted, self._vectors(spec))) as vectors:
                async for vector in vectors:
                    ids = self._client.admission.admit(spec).prompt.ids
                    yield EmbeddingRequestOutput(
                        request_id=request_id, prompt_token_ids=ids, outputs=EmbeddingOutput(list(vector))
                    )
        finally:
            del self._running[request_id]

    async def abort(self, request_id: str) -> None:
        """End a request; its generator ends, too. Nothing happens where it has ended, or never was."""
        if request_id in self._running:
            self._running[request_id].set()

    async def _vectors(self, spec: RequestSpec) -> AsyncGenerator[tuple[float, ...], None]:
        (vector,) = await self._client.encode(spec)
        yield vector

    async def _load_adapter(self, asked: LoRARequest | None) -> str:
        """The name of an adapter that is served now, empty for none; another one of its name gives way."""
        (adapter,) = list_adapters(asked, 1)
        if adapter is None:
            return ""
        await self._ready()
        async with self._loading:
            if self._asked_adapters.is_new(adapter, self._client.adapters):
                await self._client.order(LoadAdapter(adapter.name, adapter.path, replace=True))
            self._asked_adapters.note(adapter)
        return adapter.name

    async def _ask(
        self, inputs: PromptInput, request_id: str, *, trace: Mapping[str, str] | None, **asked: Any
    ) -> RequestSpec:
        """The request for a prompt, once the engine can take it."""
        await self._ready()
        if request_id in self._running:
            raise BadRequest(f"request {request_id!r} is under way already: choose another id", param="request_id")
        prompt = await asyncio.to_thread(self._prompts.read, inputs)  # media are fetched and decoded there
        return RequestSpec(prompts=(prompt,), request_id=request_id, trace=trace or {}, **asked)

    # The engine

    async def check_health(self) -> None:
        """Raises ``EngineDied``, or what the model could not be loaded for, where the engine can't be used any more."""
        if self._client.status.state == "dead":
            raise self._client.failure or EngineDied(self._client.status.error or "the engine is gone")

    @property
    def is_running(self) -> bool:
        """Whether the engine takes requests."""
        return self._client.status.state == "ready"

    @property
    def errored(self) -> bool:
        return self._client.status.state == "dead"

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give memory back, see ``LLM.sleep``; with mode ``"wait"`` when all requests have ended."""
        await self._ready()
        await self._client.order(Sleep(level, mode))

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory again, see ``LLM.wake_up``."""
        await self._client.order(WakeUp(tuple(tags or ())))

    async def start_profile(self) -> None:
        """Record a profile from now on, where ``profiler_config`` or ``torch_profiler_dir`` says how."""
        await self._ready()
        await self._client.order(StartProfile())

    async def stop_profile(self) -> None:
        """Write the profile."""
        await self._client.order(StopProfile())

    async def is_sleeping(self) -> bool:
        return self._client.status.state == "sleeping"

    @property
    def limit_concurrency(self) -> int | None:
        """Most requests that are taken at a time; None: they wait."""
        return None

    def start_background_loop(self) -> None:
        """Connect to the engine; requests do that by themselves. Must be called in an event loop."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._client.start())

    def shutdown_background_loop(self) -> None:
        """End the engine's process. ``close`` does it with time for what still runs."""
        self._supervisors.stop()

    async def close(self, *, drain: float = 0.0) -> None:
        """End the engine, letting running requests end for at most ``drain`` seconds. May be called again."""
        with suppress(LsvError):
            await self._client.close(drain=drain)
        await asyncio.to_thread(self._supervisors.stop)

    async def __aenter__(self) -> AsyncLLMEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ready(self) -> None:
        """Wait until the model is loaded. Raises why it can't be."""
        self.start_background_loop()
        assert self._starting is not None
        await self._starting
        await self._client.ready()

    # What runs

    @property
    def tokenizer(self) -> Tokenizer:
        return self._client.tokenizer

    @property
    def model_config(self) -> ModelConfig:
        return ModelConfig.of(self.config, self._client.fit)

    async def get_tokenizer(self) -> Tokenizer:
        return self._client.tokenizer

    async def get_model_config(self) -> ModelConfig:
        return self.model_config

    async def get_parallel_config(self) -> ParallelConfig:
        return ParallelConfig.of(self.config)

    async def get_scheduler_config(self) -> SchedulerConfig:
        return SchedulerConfig.of(self.config)

    async def get_decoding_config(self) -> DecodingConfig:
        return DecodingConfig(guided_decoding_backend=self.config.grammars)

    async def get_lora_config(self) -> None:
        """There is no such record: ``config.adapters`` says how adapters are served."""


async def _until(aborted: asyncio.Event, items: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """What a generator gives until it ends or is aborted."""
    end = asyncio.ensure_future(aborted.wait())
    try:
        while True:
            item = asyncio.ensure_future(anext(items))
            await asyncio.wait({item, end}, return_when=asyncio.FIRST_COMPLETED)
            if not item.done():
                item.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration, LsvError):
                    await item
                return
            try:
                yield item.result()
            except StopAsyncIteration:
                return
    finally:
        end.cancel()
        await items.aclose()
