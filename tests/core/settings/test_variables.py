"""Variables of vLLM: each that is known is read, or warned of by name."""

from __future__ import annotations

import os

import pytest

from lsv import plugins
from lsv.settings import Declared, foreign, gather, options, unknown_variables

KNOWN = (
    "VLLM_TARGET_DEVICE", "VLLM_USE_PRECOMPILED", "VLLM_CONFIG_ROOT", "VLLM_CPU_AVX512BF16", "VLLM_CACHE_ROOT",
    "VLLM_HOST_IP", "VLLM_PORT", "VLLM_RPC_BASE_PATH", "VLLM_USE_MODELSCOPE", "VLLM_INSTANCE_ID",
    "VLLM_RINGBUFFER_WARNING_INTERVAL", "VLLM_NCCL_SO_PATH", "VLLM_USE_TRITON_FLASH_ATTN",
    "VLLM_TEST_DYNAMO_GRAPH_CAPTURE", "VLLM_DYNAMO_USE_CUSTOM_DISPATCHER", "VLLM_ENGINE_ITERATION_TIMEOUT_S",
    "VLLM_API_KEY", "VLLM_USAGE_STATS_SERVER", "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_USAGE_SOURCE",
    "VLLM_CONFIGURE_LOGGING", "VLLM_LOGGING_CONFIG_PATH", "VLLM_LOGGING_LEVEL", "VLLM_TRACE_FUNCTION",
    "VLLM_ATTENTION_BACKEND", "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_PP_LAYER_PARTITION", "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND", "VLLM_OPENVINO_KVCACHE_SPACE", "VLLM_OPENVINO_CPU_KV_CACHE_PRECISION",
    "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS", "VLLM_USE_RAY_SPMD_WORKER", "VLLM_USE_RAY_COMPILED_DAG",
    "VLLM_USE_RAY_COMPILED_DAG_NCCL_CHANNEL", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_ASSETS_CACHE",
    "VLLM_IMAGE_FETCH_TIMEOUT", "VLLM_AUDIO_FETCH_TIMEOUT", "VLLM_XLA_CACHE_PATH", "VLLM_FUSED_MOE_CHUNK_SIZE",
    "VLLM_NO_DEPRECATION_WARNING", "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
    "VLLM_TEST_FORCE_FP8_MARLIN", "VLLM_RPC_GET_DATA_TIMEOUT_MS", "VLLM_RPC_TIMEOUT", "VLLM_ALLOW_ENGINE_USE_RAY",
    "VLLM_PLUGINS", "VLLM_TORCH_PROFILER_DIR", "VLLM_USE_TRITON_AWQ", "VLLM_USE_V1",
    "VLLM_OFFLOAD_WEIGHTS_BEFORE_QUANT", "VLLM_MLA_DISABLE", "VLLM_PROFILER_ENABLED",
    "VLLM_HPU_LOG_STEP_GRAPH_COMPILATION", "VLLM_HPU_LOG_STEP_GRAPH_COMPILATION_ALL",
    "VLLM_HPU_LOG_STEP_CPU_FALLBACKS", "VLLM_HPU_LOG_STEP_CPU_FALLBACKS_ALL", "VLLM_T_COMPILE_FULLGRAPH",
    "VLLM_T_COMPILE_DYNAMIC_SHAPES", "VLLM_FULL_WARMUP", "VLLM_SKIP_WARMUP", "VLLM_GRAPH_RESERVED_MEM",
    "VLLM_GRAPH_PROMPT_RATIO", "VLLM_GRAPH_PROMPT_STRATEGY", "VLLM_GRAPH_DECODE_STRATEGY",
    "VLLM_EXPONENTIAL_BUCKETING", "VLLM_PROMPT_BS_BUCKET_MIN", "VLLM_PROMPT_SEQ_BUCKET_STEP",
    "VLLM_DECODE_BS_BUCKET_MAX", "VLLM_DECODE_BLOCK_BUCKET_MAX", "VLLM_HANDLE_TOPK_DUPLICATES",
    "VLLM_CONFIG_HIDDEN_LAYERS", "VLLM_DELAYED_SAMPLING", "VLLM_PROMPT_USE_FLEX_ATTENTION",
    "VLLM_PROMPT_USE_FUSEDSDPA", "VLLM_DISABLE_MARK_SCALES_AS_CONST",
)  # fmt: skip


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith(("LSV_", "VLLM_")):
            monkeypatch.delenv(variable)


@pytest.mark.row("F-829", "F-576")
def test_every_known_variable_is_read_or_warned_of() -> None:
    settings = (*options.CORE, *plugins.load().settings())
    read = {variable for setting in settings for variable in setting.variables}
    assert [name for name in KNOWN if name not in read | {*foreign.GRANTED, *foreign.WITHOUT_EFFECT}] == []
    assert read.isdisjoint({*foreign.GRANTED, *foreign.WITHOUT_EFFECT}), "what is read has an effect"
    assert foreign.GRANTED.keys().isdisjoint(foreign.WITHOUT_EFFECT)


@pytest.mark.row("F-120", "F-808", "F-422", "F-851", "F-858")
def test_a_variable_without_effect_is_warned_of_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_RPC_TIMEOUT", "600000")
    monkeypatch.setenv("VLLM_NEVER_HEARD_OF", "1")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")
    monkeypatch.setenv("VLLM_MLA_DISABLE", "0")
    monkeypatch.setenv("VLLM_TRACE_FUNCTION", "")
    first, second = unknown_variables(options.CORE)
    assert first == "the variable VLLM_NEVER_HEARD_OF has no effect: it is not read here"
    assert second.startswith("the variable VLLM_RPC_TIMEOUT has no effect: the server waits as long as its")


@pytest.mark.row("F-828", "F-202")
@pytest.mark.parametrize(
    ("value", "level"),
    [("DEBUG", "debug"), ("INFO", "info"), ("WARN", "warning"), ("Error", "error"), ("trace", "debug")],
)
def test_levels_of_logging_as_others_write_them(monkeypatch: pytest.MonkeyPatch, value: str, level: str) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", value)
    assert gather(Declared(options.CORE), {})["log_level"] == level


@pytest.mark.parametrize(
    ("name", "value", "link"),
    [
        ("LSV_PORT", "tcp://10.0.0.1:8000", True), ("LSV_PORT", "8000", False), ("VLLM_PORT", "udp://1.2.3.4:5", True),
        ("LSV_SERVICE_HOST", "10.0.0.1", True), ("LSV_SERVICE_PORT_HTTP", "80", True),
        ("LSV_WEBUI_PORT", "tcp://10.0.0.1:7860", True), ("LSV_WEBUI_PORT", "7860", False),
        ("LSV_PORT_8000_TCP_ADDR", "10.0.0.1", True), ("LSV_SUPPORT", "x", False), ("PORT", "tcp://x", False),
    ],
)  # fmt: skip
def test_what_kubernetes_made(name: str, value: str, link: bool) -> None:
    assert foreign.is_service_link(name, value) is link
