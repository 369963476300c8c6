"""The options of vLLM and its forks that lsv takes without doing anything, or knows and refuses, each with the reason.

One table for flags, config files, variables and the constructor of ``LLM``. What a feature that comes to lsv honours
moves from here to ``lsv.settings.options``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lsv.settings import Setting, SettingType
from lsv.settings.neutral import neutral
from lsv.settings.setting import ANYTHING

ELSEWHERE = "Known from elsewhere"
"""The heading that the help shows them under."""


class _Row(NamedTuple):
    """The neutral values, and the type where they do not say it."""

    values: tuple[Any, ...]
    type: SettingType | None = None


def _any(type: SettingType) -> _Row:
    """Every value is neutral."""
    return _Row((ANYTHING,), type)


def _none(type: SettingType = "str") -> _Row:
    """Only leaving it out is."""
    return _Row((), type)


_SWITCH = _Row((False, True))
"""On or off, it is the same."""
_OFF = _Row((False,))
_ON = _Row((True,))


def _rows(instead: str, *, tolerant: bool = False, **rows: _Row) -> tuple[Setting, ...]:
    return tuple(
        neutral(name, *row.values, type=row.type, instead=instead, tolerant=tolerant) for name, row in rows.items()
    )


_LOADING = (
    *_rows("config.json is read in transformers' layout, even if the folder has Mistral's params.json",
           config_format=_Row(("auto", "hf", "mistral"))),
    *_rows("override single keys of config.json with --hf-overrides", hf_config_path=_none()),
    *_rows("set the variable HF_TOKEN, which the Hub's library reads", hf_token=_none()),
    *_rows("long texts are already tokenised in separate threads", tokenizer_pool_size=_any("int"),
           tokenizer_pool_type=_any("str"), tokenizer_pool_extra_config=_any("json")),
    *_rows("weights are read tensor by tensor on the host and quantised before they reach the device",
           weights_load_device=_any("str"), max_parallel_loading_workers=_any("int"), use_tqdm_on_load=_SWITCH,
           pt_load_map_location=_any("json"), safetensors_load_strategy=_any("str")),
    *_rows("scales of the KV cache are read from the checkpoint, or from --quantization-param-path",
           calculate_kv_scales=_OFF),
    *_rows("--dtype is the type of attention too", override_attention_dtype=_none()),
    *_rows("no plugin drives that hardware", override_neuron_config=_any("json")),
)  # fmt: skip

_STEPS = (
    *_rows("a preempted request is computed again; with --kv-offload-gib its blocks come back from host memory",
           preemption_mode=_Row(("recompute",)), swap_space=_any("float")),
    *_rows("cache events are not published", kv_events_config=_none("json"), ec_transfer_config=_none("json")),
    *_rows("a step is one pass; --async-scheduling plans one while another runs", tolerant=True,
           num_scheduler_steps=_Row((1,)), multi_step_stream_outputs=_SWITCH),
    *_rows("--max-itl-ms limits how much new prompts slow down running answers", tolerant=True,
           scheduler_delay_factor=_Row((0.0,)), max_num_partial_prefills=_Row((1,)),
           max_long_partial_prefills=_Row((1,)), long_prefill_token_threshold=_Row((0,))),
    *_rows("there is one block manager, for every kind of cache", use_v2_block_manager=_SWITCH,
           disable_hybrid_kv_cache_manager=_SWITCH, num_lookahead_slots=_any("int"),
           prefix_caching_hash_algo=_any("str"), kv_sharing_fast_prefill=_SWITCH),
    *_rows("a scheduling order is a plugin: --scheduling-policy", scheduler_cls=_none()),
    *_rows("text is produced outside the engine's steps, and every token is sent at once",
           disable_async_output_proc=_SWITCH, stream_interval=_any("int")),
    *_rows("graphs cover any context length; the platform's graph-rows option limits their requests",
           max_seq_len_to_capture=_any("int"), max_context_len_to_capture=_any("int"),
           cudagraph_capture_sizes=_any("list"), cuda_graph_sizes=_any("list"),
           max_cudagraph_capture_size=_any("int")),
    *_rows("the platform decides how steps are compiled and captured; --enforce-eager turns that off",
           optimization_level=_any("str"), disable_cascade_attn=_SWITCH),
    neutral("compilation_config", ANYTHING, type="str", short=("-O", "-cc"),
            instead="the platform decides how steps are compiled and captured; --enforce-eager turns that off"),
    *_rows("inputs of media are prepared in side processes, and embeddings kept by --encoder-cache-tokens",
           disable_mm_preprocessor_cache=_SWITCH, mm_processor_cache_gb=_any("float"),
           mm_processor_cache_type=_any("str"), mm_encoder_tp_mode=_any("str"), skip_mm_profiling=_SWITCH,
           disable_chunked_mm_input=_SWITCH),
    *_rows("media are read by the model's own processor: --mm-processor-kwargs", media_io_kwargs=_Row(({},)),
           interleave_mm_strings=_OFF, enable_mm_embeds=_OFF, video_pruning_rate=_Row((0.0,))),
)  # fmt: skip

_RANKS = (
    *_rows("collectives are the platform's own", disable_custom_all_reduce=_SWITCH,
           disable_nccl_for_dp_synchronization=_SWITCH),
    *_rows("Ray runs the ranks on the machines of its cluster: --distributed-executor-backend ray",
           worker_use_ray=_OFF),
    *_rows("the engine runs in its own process; Ray runs its ranks: --distributed-executor-backend ray",
           engine_use_ray=_OFF),
    *_rows("a worker is the platform's: write a plugin", worker_cls=_Row(("auto",)), worker_extension_cls=_Row(("",))),
    *_rows("all ranks that share the experts have all tokens and sum their results; nothing else is sent",
           all2all_backend=_any("str")),
    *_rows("each expert is on one rank and has no copies; --enable-eplb moves experts",
           num_redundant_experts=_Row((0,))),
    *_rows("set the places of experts with --expert-map", expert_placement_strategy=_Row(("linear",))),
    *_rows("the balance is logged whenever it is measured", eplb_log_balancedness=_SWITCH),
    *_rows("a step's tokens are computed together", tolerant=True, enable_dbo=_OFF),
    *_rows("a request's cache is never cut", decode_context_parallel_size=_Row((1,)),
           prefill_context_parallel_size=_Row((1,)), dcp_size=_Row((1,))),
)  # fmt: skip

_ADAPTERS = (
    *_rows("of adapters only LoRA is served: --enable-lora", enable_prompt_adapter=_OFF, prompt_adapters=_Row(((),))),
    *_rows("a request names its adapter itself", default_mm_loras=_none("json")),
    neutral("enable_prompt_adapters", False, instead="of adapters only LoRA is served: --enable-lora"),
    *_rows("adapters that add tokens are refused when they are loaded", lora_extra_vocab_size=_any("int")),
    *_rows("the rope's scaling is the base model's for all adapters", long_lora_scaling_factors=_none()),
    *_rows("adapters are split like their layers, and answers are the same", fully_sharded_loras=_SWITCH),
    *_rows("adapters with biases are refused when they are loaded", enable_lora_bias=_SWITCH),
    *_rows("there are no such adapters", max_prompt_adapters=_any("int"),
           max_prompt_adapter_token=_any("int")),
)  # fmt: skip

_DRAFTS = (
    *_rows("drafts are verified in the step of the next token", speculative_disable_mqa_scorer=_SWITCH),
    *_rows("log probabilities are given wherever they are asked for", disable_logprobs_during_spec_decoding=_SWITCH),
    neutral("speculative_draft_tensor_parallel_size", ANYTHING, type="int", short=("-spec-draft-tp",),
            instead="a draft model runs unsplit on every rank"),
)  # fmt: skip

_ANSWERS = (
    *_rows("the parser is chosen automatically or with --tool-call-parser", enable_auto_tool_choice=_SWITCH),
    *_rows("clients run tools: the server only reads the calls", tool_server=_none()),
    *_rows("the parser is chosen automatically or with --reasoning-parser", enable_reasoning=_SWITCH),
    *_rows("plugins offer parsers through the hook lsv_reasoning_parsers", reasoning_config=_none("json")),
    *_rows("a request sets the form of its answers, which is followed exactly or refused",
           guided_decoding_disable_fallback=_SWITCH, guided_decoding_disable_any_whitespace=_SWITCH,
           guided_decoding_disable_additional_properties=_SWITCH),
    *_rows("requests can't bring code; set logits processors with --logits-processors",
           logits_processor_pattern=_none()),
)  # fmt: skip

_WATCHING = (
    *_rows("answers are never logged", enable_log_deltas=_SWITCH),
    *_rows("answers are never logged; a proxy in front can", tolerant=True, enable_log_outputs=_OFF),
    *_rows("requests are logged in one line each: --disable-log-requests", disable_uvicorn_access_log=_SWITCH,
           disable_access_log_for_endpoints=_any("str")),
    *_rows("spans cover queue, prefill and decode; a profile of steps has more", tolerant=True,
           collect_detailed_traces=_none("list")),
    *_rows("no metric is hidden", tolerant=True, show_hidden_metrics_for_version=_none()),
    *_rows("/metrics has this figure", tolerant=True, enable_server_load_tracking=_OFF),
    *_rows("every usage has the number of cached prompt tokens",
           enable_prompt_tokens_details=_SWITCH),
    *_rows("every answer carries X-Request-Id", enable_request_id_headers=_SWITCH),
    *_rows("tracebacks of lsv's own errors are always logged", log_error_stack=_SWITCH),
)  # fmt: skip

NEUTRAL = (*_LOADING, *_STEPS, *_RANKS, *_ADAPTERS, *_DRAFTS, *_ANSWERS, *_WATCHING)

NEUTRAL_OF_SERVERS = (
    *_rows("frontends are plugins; the hook lsv_api_app_created changes the application", middleware=_Row(((),))),
    *_rows("the engine always runs in its own process", disable_frontend_multiprocessing=_SWITCH),
    *_rows("the API's description is always served", disable_fastapi_docs=_OFF),
    *_rows("restart the server when its certificate changes", tolerant=True, enable_ssl_refresh=_OFF),
    *_rows("the size of headers is bounded; --max-body-mb bounds bodies", h11_max_incomplete_event_size=_any("int"),
           h11_max_header_count=_any("int")),
    *_rows("nobody but the operator sees the tokenizer", enable_tokenizer_info_endpoint=_OFF),
)  # fmt: skip

NEUTRAL_OFFLINE = _rows(
    "nothing is served",
    disable_log_stats=_SWITCH,
    disable_log_requests=_SWITCH,
    enable_log_requests=_SWITCH,
    max_log_len=_any("int"),
)
"""Options of ``lsv serve`` that the constructor of ``LLM`` takes, too."""
