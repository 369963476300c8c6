"""The offline API: ``LLM`` runs a model in this process, with the names that vLLM's users know."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from types import TracebackType
from typing import Any, Protocol

import msgspec

from lsv import plugins
from lsv.config import EngineConfig, Fit
from lsv.engine import report
from lsv.engine.engine import Engine
from lsv.engine.messages import Stats
from lsv.engine.orders.order import ResetPrefixCache
from lsv.engine.stats_log import describe_state
from lsv.media.options import MediaOptions
from lsv.plugins import Plugins
from lsv.plugins.logits_processors import name_processors
from lsv.plugins.logs import adopt_call_recording
from lsv.request.adapter import LoRARequest
from lsv.request.outputs import CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Logprob, RequestOutput
from lsv.request.params import PoolingParams, SamplingParams
from lsv.settings import Declared, Given, Settings, dashed, gather, neutral, options, underscored, unknown_variables
from lsv.settings.elsewhere import NEUTRAL_OFFLINE
from lsv.settings.spelling import suggest
from lsv.text.prompts import PromptInput, PromptReader, list_prompts
from lsv.text.tokenizer import Tokenizer, open_tokenizer
from lsv_base.errors import ConfigError
from lsv_base.processes import heap
from lsv_offline.arguments import (
    check_kind,
    list_adapters,
    list_params,
    list_priorities,
    refuse_loggers,
    refuse_prompt_adapter,
)
from lsv_offline.beam_search import BeamSearchOutput, BeamSearchParams
from lsv_offline.configs import DecodingConfig, ModelConfig, ParallelConfig, SchedulerConfig
from lsv_offline.control import ControlMethods
from lsv_offline.groups import ModelExecutor, TokenizerGroup
from lsv_offline.inline_client import InlineClient
from lsv_offline.llm_engine import LLMEngine as SteppedEngine
from lsv_offline.llm_engine import Output
from lsv_offline.pooling import PoolingMethods
from lsv_offline.progress import Progress, progress_bar

__all__ = [
    "LLM", "CompletionOutput", "EmbeddingOutput", "EmbeddingRequestOutput", "LLMEngine", "Logprob", "RequestOutput",
]  # fmt: skip

log = logging.getLogger(__name__)

_UNBOUNDED = 1 << 31


class LLM(PoolingMethods, ControlMethods):
    """A model in this process, for batches of prompts.

    Options are those of ``lsv serve`` with underscores (``dtype``, ``max_model_len``, ``tensor_parallel_size`` …).
    ``close``, leaving a ``with`` block or deleting the object frees its memory. Raises ``ConfigError`` for options that
    are unknown or can't be, ``CheckpointError`` for a model that can't be loaded.
    """

    def __init__(
        self,
        model: str | None = None,
        tokenizer: str | None = None,
        *,
        skip_tokenizer_init: bool = False,
        **engine_options: Any,
    ) -> None:
        settings, loaded = read_arguments({"model": model, "tokenizer": tokenizer, **engine_options})
        self._open(settings, loaded, skip_tokenizer_init=skip_tokenizer_init)

    @classmethod
    def from_settings(cls, settings: Settings, loaded: Plugins, *, skip_tokenizer_init: bool = False) -> LLM:
        """An LLM from settings that have been gathered already."""
        llm = cls.__new__(cls)
        llm._open(settings, loaded, skip_tokenizer_init=skip_tokenizer_init)
        return llm

    @classmethod
    def from_engine(cls, engine: Engine[None], tokenizer: Tokenizer, loaded: Plugins | None = None) -> LLM:
        """An LLM over an engine that has not been started."""
        llm = cls.__new__(cls)
        llm._start(engine, tokenizer, loaded)
        return llm

    def _open(self, settings: Settings, loaded: Plugins, *, skip_tokenizer_init: bool) -> None:
        from lsv.engine.main import make_engine
        from lsv.resolve import resolve

        adopt_call_recording(settings)
        # the caller waits for its own requests: no queue is too long
        config = msgspec.structs.replace(resolve(settings, loaded), max_queue=_UNBOUNDED)
        if config.topology.data > 1 or config.replica_nodes is not None:
            raise ConfigError(
                "data_parallel_size: LLM runs one engine, in this process; AsyncLLMEngine and lsv serve run replicas",
                param="data_parallel_size",
            )
        if config.nodes is not None and config.nodes.number > 0:
            raise ConfigError("node_rank: LLM is node 0; the others run lsv serve with --node-rank", param="node_rank")
        tokenizer = open_tokenizer(config, skip=skip_tokenizer_init or settings["skip_tokenizer_init"])
        with heap.without_collections():  # imports torch
            engine = make_engine(config, loaded)
        self._start(engine, tokenizer, loaded, MediaOptions.from_settings(settings))

    def _start(
        self,
        engine: Engine[None],
        tokenizer: Tokenizer,
        loaded: Plugins | None,
        media: MediaOptions = MediaOptions(),  # noqa: B008 - a frozen record
    ) -> None:
        try:
            fit = engine.start(lambda stage, done, total: None)
        except BaseException:
            engine.close()
            raise
        self._client: InlineClient | None = InlineClient(engine, tokenizer, fit, plugins=loaded)
        self._plugins = loaded or Plugins()
        self._prompts = PromptReader(tokenizer, engine.config, self._plugins.catalog, media)
        self.llm_engine = LLMEngine(self._client, self._prompts, self)
        self._numbers = itertools.count()
        report.log_fit(engine.config, fit)
        self._plugins.call("lsv_engine_started", config=engine.config)

    # Answers

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        prompt_token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        use_tqdm: Progress = True,
        priority: Sequence[int] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        prompt_adapter_request: object = None,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts; ``use_tqdm`` shows progress on stderr, or is what makes a bar.
        ``lora_request`` is the adapter of all prompts, or one for each.

        One set of parameters serves all prompts, a list gives each its own. Raises ``BadRequest`` before anything is
        computed, ``EngineDied`` later; no request is left behind. A request that fails alone does not cost the others
        their answers: its output says why in ``error``, and ``output.checked()`` raises it.
        """
        refuse_prompt_adapter(prompt_adapter_request)
        listed = list_prompts(prompts, prompt_token_ids)
        params = list_params(sampling_params, len(listed), self.get_default_sampling_params, "sampling_params")
        outputs = self._run(listed, params, use_tqdm, priority, lora_request)
        return [output for output in outputs if isinstance(output, RequestOutput)]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: Progress = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers to one conversation or to each of several; content may have media in parts, as in the OpenAI API.

        Raises ``BadRequest`` without a chat template.
        """
        prompts = self._prompts.read_chats(
            messages,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def read_chat(self, messages: Sequence[Mapping[str, Any]]) -> PromptInput:
        """The prompt that ``chat`` answers for one conversation. Raises ``BadRequest``."""
        return self._prompts.read_chats(messages)[0]

    def beam_search(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: BeamSearchParams,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: Progress = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The likeliest answers to each prompt, best first. The engine itself bounds what runs at a time, so that
        ``concurrency_limit`` has no effect. Raises ``BadRequest``, and what a request failed with.
        """
        check_kind(params, BeamSearchParams, "params")
        outputs = self.generate(prompts, params.sampling(), use_tqdm=use_tqdm, lora_request=lora_request)
        return [BeamSearchOutput.of(output, params, self.get_tokenizer()) for output in outputs]

    def _run(
        self,
        prompts: Sequence[PromptInput],
        params: Sequence[SamplingParams | PoolingParams],
        show_progress: Progress,
        priority: Sequence[int] | None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[Output]:
        engine, adapters = self._open_engine(), list_adapters(lora_request, len(prompts))
        priorities = list_priorities(priority, len(prompts))
        names = [str(next(self._numbers)) for _ in prompts]
        done: dict[str, Output] = {}
        try:
            for index, (name, prompt, one) in enumerate(zip(names, prompts, params, strict=True)):
                engine.add_request(name, prompt, one, priority=priorities[index], lora_request=adapters[index])
            with progress_bar(len(names), show_progress) as advance:
                while engine.has_unfinished_requests():
                    for output in engine.step(finished_only=True):
                        done[output.request_id] = output
                        advance(output)
        finally:
            if len(done) < len(names):
                engine.abort_request(names)
        _warn_of_failures(done.values())
        return [done[name] for name in names]

    # The engine

    @property
    def config(self) -> EngineConfig:
        return self._open_engine().client.config

    @property
    def fit(self) -> Fit:
        """What fits: blocks, longest request, bound ops."""
        return self._open_engine().client.fit

    @property
    def stats(self) -> Stats:
        """The engine's state and its running totals."""
        return self._open_engine().client.stats

    def get_tokenizer(self) -> Tokenizer:
        return self._open_engine().client.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What ``generate`` uses when no parameters are given: the checkpoint's own recommendation."""
        return SamplingParams(**self.get_tokenizer().sampling_defaults)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self._open_engine().client.order(ResetPrefixCache())

    def close(self) -> None:
        """Free the model and its memory. May be called again."""
        client, self._client = getattr(self, "_client", None), None
        if client is not None:
            client.close()
            self._plugins.call("lsv_engine_stopped", config=client.config)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def _control(self) -> InlineClient:
        return self._open_engine().client

    def _open_engine(self) -> LLMEngine:
        if self._client is None:
            raise ConfigError("this LLM has been closed: make a new one")
        return self.llm_engine


class Arguments(Protocol):
    """``lsv.EngineArgs``."""

    def given(self) -> dict[str, Any]:
        """The options of an ``LLM``."""
        ...


class LLMEngine(SteppedEngine):
    """The engine of an ``LLM``, stepped by hand, with what vLLM's users know besides."""

    def __init__(self, client: InlineClient, prompts: PromptReader, llm: LLM) -> None:
        super().__init__(client, prompts)
        self._llm = llm  # which closes the engine when nobody holds either of them any more

    @classmethod
    def from_engine_args(
        cls, engine_args: Arguments, usage_context: object = None, stat_loggers: object = None
    ) -> LLMEngine:
        """The usual way to make one. Raises ``ConfigError`` and ``CheckpointError``."""
        refuse_loggers(stat_loggers)
        return LLM(**engine_args.given()).llm_engine

    def get_tokenizer(self) -> Tokenizer:
        return self.client.tokenizer

    def get_tokenizer_group(self) -> TokenizerGroup:
        return TokenizerGroup(self.client.tokenizer)

    @property
    def model_executor(self) -> ModelExecutor:
        from lsv_runtime.worker.load.saved import save_sharded_state

        return ModelExecutor(partial(save_sharded_state, self.client.config, self._llm._plugins.catalog))

    @property
    def model_config(self) -> ModelConfig:
        return ModelConfig.of(self.client.config, self.client.fit)

    def get_model_config(self) -> ModelConfig:
        return self.model_config

    def get_parallel_config(self) -> ParallelConfig:
        return ParallelConfig.of(self.client.config)

    def get_scheduler_config(self) -> SchedulerConfig:
        return SchedulerConfig.of(self.client.config)

    def get_decoding_config(self) -> DecodingConfig:
        return DecodingConfig(guided_decoding_backend=self.client.config.grammars)

    def get_lora_config(self) -> None:
        """There is no such record: ``config.adapters`` says how adapters are served."""

    def do_log_stats(self, *_: object) -> None:
        """Log the state of the engine now."""
        log.info("%s", describe_state(self.client.stats))


def read_arguments(given: Mapping[str, Any]) -> tuple[Settings, Plugins]:
    """Keyword arguments of ``LLM`` as settings, and the plugins that they choose. Raises ``ConfigError``."""
    named = {**given, "logits_processors": name_processors(given.get("logits_processors"))}
    loaded = _load_plugins(named)
    settings = read_options(named, loaded)
    settings.hand_on("cache_root")
    settings.hand_on("cluster_key")
    settings.hand_on("host_ip")
    for warning in (*neutral.warnings(settings), *unknown_variables((*options.CORE, *loaded.settings()))):
        _warn_once(warning)
    return settings, loaded


def read_options(given: Mapping[str, Any], loaded: Plugins) -> Settings:
    """Keyword arguments as settings, None as if left out; variables count as they do for commands.

    Raises ``ConfigError``.
    """
    declared = Declared((*options.for_scope("engine", loaded.settings()), *NEUTRAL_OFFLINE))
    found: dict[str, Given] = {}
    for name, value in given.items():
        setting = declared.by_key.get(dashed(name))
        if setting is None:
            raise ConfigError(f"option {name}: unknown{suggest(name, map(underscored, declared.by_key))}", param=name)
        if value is not None:
            found[setting.name] = Given(value, f"argument {name}")
    return gather(declared, found)


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def _warn_of_failures(outputs: Collection[Output]) -> None:
    """Tell about requests that failed, for those who do not look."""
    errors = [output.error.message for output in outputs if output.error is not None]
    if errors:
        log.warning("%d of %d requests failed, see their error; the first: %s", len(errors), len(outputs), errors[0])


def _load_plugins(given: dict[str, Any]) -> Plugins:
    """The plugins that arguments and variables choose; takes these arguments out of ``given``."""
    named = {setting.name: given.pop(setting.name, None) for setting in options.CHOOSING}
    chosen = gather(
        Declared(options.CHOOSING),
        {name: Given(value, f"argument {name}") for name, value in named.items() if value is not None},
    )
    return plugins.load(chosen["plugins"], chosen["no_plugin"] or (), chosen["extra_plugins"])
