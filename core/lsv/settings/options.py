"""The core's own options, grouped as the help shows them."""

from __future__ import annotations

from collections.abc import Iterable

from lsv.settings import Setting
from lsv.settings.elsewhere import ELSEWHERE, NEUTRAL
from lsv.settings.hardware import HARDWARE
from lsv.settings.media import MEDIA
from lsv.settings.serving import SERVE
from lsv.settings.setting import grouped
from lsv.settings.tiers import TIERS

COMMON = grouped(
    "Every command",
    "all",
    Setting(name="config", help="YAML file of options; flags and variables win over it", main=True),
    Setting(name="plugins", type="list", help="load only these plugins (default: all)"),
    Setting(name="no_plugin", type="list", help="plugins to leave out"),
    Setting(
        name="extra_plugins", type="list", env=("VLLM_PLUGINS",),
        help="of the plugins that do not come with lsv, load only these; an empty list loads none (default: all)",
    ),
    Setting(
        name="cache_root", env=("VLLM_CACHE_ROOT", "XDG_CACHE_HOME"),
        help="folder for data kept between runs, such as compiled kernels, in lsv below it (default: ~/.cache)",
    ),
    Setting(
        name="log_level", default="info", choices=("debug", "info", "warning", "error", "critical"),
        spellings={"warn": "warning", "trace": "debug", "fatal": "critical", "notset": "debug"},
        env=("VLLM_LOGGING_LEVEL",), aliases=("uvicorn_log_level",), help="lowest level that is logged", main=True,
    ),
    Setting(
        name="log_config_file", env=("VLLM_LOGGING_CONFIG_PATH",),
        help="JSON file for Python's logging.config.dictConfig, which replaces --log-level",
    ),
    Setting(
        name="configure_logging", type="bool", default=True, env=("VLLM_CONFIGURE_LOGGING",),
        help="set up logging",
    ),
    Setting(
        name="trace_function", type="bool", default=False, env=("VLLM_TRACE_FUNCTION",),
        help="write each function call of lsv to a file as it happens, to see where a process hangs; very slow",
    ),
)  # fmt: skip

CHOOSING = tuple(setting for setting in COMMON if setting.name in ("plugins", "no_plugin", "extra_plugins"))
"""The options that decide which plugins are loaded, and are read before those of plugins are known."""

CACHING = tuple(setting for setting in COMMON if setting.name == "cache_root")
_OF_LOGS = ("log_config_file", "configure_logging", "trace_function")
LOGGING = tuple(setting for setting in COMMON if setting.name in _OF_LOGS)

_MODEL = grouped(
    "Model",
    "engine",
    Setting(name="model", help="folder, Hub name or alias of the model; also the first plain argument", main=True),
    Setting(name="tokenizer", help="folder or name of the tokenizer (default: the model's own)"),
    Setting(
        name="tokenizer_mode", default="auto", choices=("auto", "mistral"), spellings={"hf": "auto", "slow": "auto"},
        help="auto reads a fast tokenizer, or converts a slow one; mistral reads tekken.json, as auto does without "
        "tokenizer.json",
    ),
    Setting(
        name="skip_tokenizer_init", type="bool", default=False,
        help="load no tokenizer: prompts are token ids, and answers have no text, but ids if requests ask for them",
    ),
    Setting(
        name="served_model_name", type="list", main=True,
        help="names of the model; answers carry the first (default: the stem of its file, its folder or repository)",
    ),
    Setting(name="revision", help="branch, tag or commit of a Hub model"),
    Setting(
        name="trust_remote_code", type="bool", default=False,
        help="run code of the checkpoint's tokenizer and config in a confined process; code of models never runs",
    ),
    Setting(name="code_revision", help="revision of the config's code (default: --revision)"),
    Setting(name="tokenizer_revision", help="branch, tag or commit of a Hub tokenizer (default: the model's)"),
    Setting(
        name="ignore_patterns", type="list", default=(),
        help='files of a Hub model that are not fetched, such as "original/**"',
    ),
    Setting(name="download_dir", help="folder for Hub models (default: the Hub's own cache)"),
    Setting(
        name="use_modelscope", type="bool", default=False, env=("VLLM_USE_MODELSCOPE",),
        help="fetch models from ModelScope, with its own library, instead of the Hugging Face Hub",
    ),
    Setting(
        name="load_format", default="auto",
        spellings={"hf": "auto", "mistral": "auto", "fastsafetensors": "safetensors", "npcache": "pt"},
        help="checkpoint format; auto detects it, dummy uses random weights",
    ),
    Setting(
        name="model_loader_extra_config", type="json", default={},
        help='JSON for the format: {"pattern": "…"}, the names of the files of sharded_state',
    ),
    Setting(
        name="model_impl", default="auto", choices=("auto", "native", "transformers"), spellings={"vllm": "native"},
        help="implementation of the architecture: a native model, transformers' own code through the adapter, or "
        "auto, whichever exists",
    ),
    Setting(
        name="dtype", default="auto", choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
        help="type of weights and activations; auto uses the checkpoint's or the platform's", main=True,
    ),
    Setting(
        name="task", default="auto", choices=("auto", "generate", "embed", "classify", "score", "reward"),
        spellings={"embedding": "embed"},
        help="task of the model, if its checkpoint does not say: answers, vectors, labels, scores", main=True,
    ),
    Setting(
        name="runner", default="auto", choices=("auto", "generate", "pooling"), help="as --task: answers or not",
    ),
    Setting(
        name="convert", default="auto", choices=("auto", "none", "embed", "classify", "reward"),
        help="as --task: conversion of a language model",
    ),
    Setting(
        name="pooler_config", type="json", aliases=("override_pooler_config",),
        help='JSON over how the checkpoint pools: {"pooling_type": "MEAN", "normalize": true}',
    ),
    Setting(
        name="quantization", short=("-q",),
        help="weight format: the name of a quantiser (default: the checkpoint's own)", main=True,
    ),
    Setting(
        name="quantization_ignore", type="list",
        help='layers that --quantization leaves as they are: lm_head, mlp.down_proj, model.layers.0, "re:.*o_proj"',
    ),
    Setting(
        name="quantization_calibration",
        help="text file, like what the model will read and write, that --quantization is fitted to; the first start "
        "takes minutes and keeps the result below --cache-root",
    ),
    Setting(
        name="max_model_len", type="int", low=1, main=True,
        help="tokens of prompt and answer (default: the model's own); lowered to a table of positions",
    ),
    Setting(
        name="allow_long_max_model_len", type="bool", default=False, env=("VLLM_ALLOW_LONG_MAX_MODEL_LEN",),
        help="allow a max-model-len above the model's own, except past a table of positions",
    ),
    Setting(name="hf_overrides", type="json", help="JSON that overrides the checkpoint's config.json"),
    Setting(name="rope_scaling", type="json", help='JSON, e.g. {"rope_type": "dynamic", "factor": 2.0}'),
    Setting(name="rope_theta", type="float", help="base of the rotary embedding"),
    Setting(
        name="disable_sliding_window", type="bool", default=False,
        help="full attention in all layers; the context is limited to the window",
    ),
    Setting(name="seed", type="int", default=0, help="seed of random weights and of requests without their own"),
    Setting(name="max_logprobs", type="int", default=20, low=-1, help="most log probabilities of a request"),
    Setting(
        name="logprobs_mode", default="raw_logprobs", choices=("raw_logprobs", "processed_logprobs"),
        help="log probabilities of the model itself, or those that tokens are drawn by: after biases, penalties, "
        "temperature and filters",
    ),
    Setting(
        name="generation_config", default="auto",
        help="folder of the generation_config.json with recommended sampling; auto is the model's, vllm is none",
    ),
    Setting(
        name="override_generation_config", type="json", default={},
        help='JSON of sampling parameters for requests that do not say, such as {"temperature": 0.5}',
    ),
)  # fmt: skip

_MEMORY = grouped(
    "Memory and KV cache",
    "engine",
    Setting(
        name="gpu_memory_utilization", type="float", low=0.01, high=1.0,
        help="share of the device's memory for the engine (default: the platform's own rule)", main=True
    ),
    Setting(name="block_size", type="int", low=1, help="tokens per cache block (default: the attention backend's)"),
    Setting(name="num_gpu_blocks_override", type="int", low=2, help="number of cache blocks (default: measured)"),
    Setting(
        name="kv_cache_memory_bytes", type="int", low=1,
        help="size of the KV cache on each device, such as 8G, instead of measuring memory",
    ),
    Setting(
        name="cpu_offload_gb", type="float", default=0.0, low=0.0, high=100_000.0,
        help="GiB of decoder layers' weights per device to keep in host memory and stream in every step, which "
        "leaves more room for the KV cache",
    ),
    Setting(
        name="kv_cache_dtype", default="auto",
        help="type of the KV cache: fp8 (fp8_e4m3), fp8_e5m2, int8; auto is the model's, or fp8 if the checkpoint "
        "is made for it", main=True
    ),
    Setting(
        name="quantization_param_path",
        help="JSON file with the scales of an fp8 KV cache, by rank and layer (default: the checkpoint's own, else 1)",
    ),
    Setting(
        name="encoder_cache_tokens", type="int", low=1,
        help="capacity in tokens of the cache for embeddings of images, audio and video, at least the largest item "
        "(default: max-model-len, within 16384 to 32768)",
    ),
    Setting(
        name="enable_prefix_caching", type="bool", default=True, help="reuse the cache of equal beginnings",
        main=True,
    ),
)  # fmt: skip

_SCHEDULING = grouped(
    "Scheduling",
    "engine",
    Setting(name="max_num_batched_tokens", type="int", low=1, help="most tokens in a step (default: 2048)", main=True),
    Setting(name="max_num_seqs", type="int", default=256, low=1, help="maximum number of running requests", main=True),
    Setting(
        name="max_queue", type="int", default=4096, low=1,
        help="maximum number of waiting requests per API key; more are refused (429)",
    ),
    Setting(name="enable_chunked_prefill", type="bool", default=True, help="split long prompts over several steps"),
    Setting(
        name="max_itl_ms", type="float", low=0,
        help="target milliseconds between tokens while prompts are computed (default: none)",
    ),
    Setting(
        name="scheduling_policy", default="fcfs", aliases=("policy",),
        help="order of waiting requests: fcfs, priority, or a plugin's policy",
    ),
    Setting(
        name="guided_decoding_backend", default="auto",
        help="default grammar back end: auto, guidance, or a plugin's",
    ),
    Setting(
        name="logits_processors", type="list", default=(),
        help="classes of batched logits processors, as package.module:Class; vllm_xargs has their arguments",
    ),
    Setting(
        name="structured_outputs_config", type="json", default={},
        help='JSON with backend and enable_in_reasoning, as in vLLM, e.g. {"backend": "guidance"}',
    ),
    Setting(
        name="speculative_config", type="json",
        help='JSON options of speculative decoding, such as {"method": "ngram", "num_speculative_tokens": 5} '
        "(default: none)",
    ),
    Setting(
        name="speculative_model",
        help="drafter: a smaller model with the same tokenizer, heads that were trained for the model, or [ngram] "
        "(prompt lookup)",
    ),
    Setting(
        name="speculative_model_quantization",
        help="quantisation of the draft model's weights (default: as in its checkpoint)",
    ),
    Setting(
        name="speculative_max_model_len", type="int", low=1,
        help="draft nothing for sequences longer than this many tokens (default: the draft model's own limit)",
    ),
    Setting(
        name="num_speculative_tokens", type="int", low=1, help="most tokens drafted at a time (default: 5)",
    ),
    Setting(
        name="speculative_disable_by_batch_size", type="int", low=0,
        help="draft nothing while more than this many requests are running (default: no limit)",
    ),
    Setting(
        name="spec_decoding_acceptance_method", default="rejection_sampler",
        choices=("rejection_sampler", "typical_acceptance_sampler"),
        help="which drafts are accepted: those that the model itself would sample, or, for sampled tokens, those "
        "that are likely enough, which changes answers",
    ),
    Setting(
        name="typical_acceptance_sampler_posterior_threshold", type="float", low=0.0, high=1.0,
        help="likelihood at which a draft always counts as typical (default: 0.09)",
    ),
    Setting(
        name="typical_acceptance_sampler_posterior_alpha", type="float", low=0.0,
        help="a draft is also typical if its likelihood exceeds this fraction of exp(-entropy) (default: 0.3)",
    ),
    Setting(
        name="ngram_prompt_lookup_max", type="int", low=1,
        help="maximum number of last tokens that prompt lookup searches for (default: 5)",
    ),
    Setting(
        name="ngram_prompt_lookup_min", type="int", low=1,
        help="minimum number of last tokens that prompt lookup searches for (default: 2)",
    ),
    Setting(
        name="async_scheduling", type="bool", env=("VLLM_DELAYED_SAMPLING",),
        help="plan a step while the previous one runs (default: if the platform gains from it)",
    ),
    Setting(
        name="step_timeout", type="float", default=300.0, low=0.1, env=("VLLM_ENGINE_ITERATION_TIMEOUT_S",),
        help="seconds after which a step counts as hung and its engine is ended",
    ),
    Setting(
        name="load_timeout", type="float", default=1800.0, low=0.1,
        help="seconds without progress after which loading or warming up counts as hung",
    ),
    Setting(
        name="profiler_config", type="json",
        help='JSON of profiles on demand: {"profiler": "torch", "torch_profiler_dir": "/profiles"}; see /start_profile',
    ),
    Setting(
        name="torch_profiler_dir", env=("VLLM_TORCH_PROFILER_DIR",),
        help="folder for on-demand profiles of torch's profiler",
    ),
    Setting(
        name="otlp_traces_endpoint",
        help="OpenTelemetry URL for spans of requests, such as http://localhost:4317",
    ),
    Setting(
        name="otlp_traces_protocol", choices=("grpc", "http/protobuf"),
        env=("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
        help="protocol for spans (default: HTTP to port 4318 or a path that ends in /v1/traces, gRPC otherwise)",
    ),
    Setting(
        name="enable_sleep_mode", type="bool", default=False,
        help="enable /sleep and /wake_up, and LLM.sleep, which release and restore the engine's memory",
    ),
)  # fmt: skip

_ADAPTERS = grouped(
    "Adapters (LoRA)",
    "engine",
    Setting(
        name="enable_lora", type="bool", default=False, help="serve adapters by name in addition to the base model",
        main=True,
    ),
    Setting(
        name="lora_modules", type="list", default=(),
        help='adapters that are served from the start: name=path, or {"name": "…", "path": "…"}; one that ships '
        "with a model is model:adapter", main=True,
    ),
    Setting(
        name="max_loras", type="int", default=1, low=1,
        help="maximum number of adapters in running requests; each takes device memory",
    ),
    Setting(
        name="qlora_adapter_name_or_path",
        help="adapter whose target modules are the only layers that --quantization quantises; it is not served by this "
        "option, but by --lora-modules or requests",
    ),
    Setting(name="max_lora_rank", type="int", default=16, low=1, high=1024, help="the largest rank of an adapter"),
    Setting(
        name="max_cpu_loras", type="int", low=1,
        help="maximum number of adapters cached on the host, at least max-loras (default: max-num-seqs)",
    ),
    Setting(
        name="lora_dtype", default="auto", choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
        help="type of adapters; auto is the model's",
    ),
    Setting(
        name="lora_resolver_cache_dir", env=("VLLM_LORA_RESOLVER_CACHE_DIR",),
        help="folder of adapter folders; each is loaded by its name on first use",
    ),
)  # fmt: skip

_NEUTRAL = grouped(ELSEWHERE, "engine", *NEUTRAL)

ENGINE = (*_MODEL, *_SCHEDULING, *_ADAPTERS, *_MEMORY, *TIERS, *MEDIA, *HARDWARE, *_NEUTRAL)

CORE = (*COMMON, *ENGINE, *SERVE)


def for_scope(scope: str, plugins: Iterable[Setting] = ()) -> tuple[Setting, ...]:
    """The settings a command of a scope takes: ``serve`` takes the engine's too, other scopes only the common ones."""
    scopes = {"serve": ("serve", "engine", "all"), "engine": ("engine", "all")}.get(scope)
    if scopes is None:
        return COMMON
    return tuple(setting for setting in (*CORE, *plugins) if setting.scope in scopes)
