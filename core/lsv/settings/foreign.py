"""Variables of vLLM and its forks that set nothing here, and why. Those that do are named by their settings."""

from __future__ import annotations

import re
from collections.abc import Mapping

PREFIX = "VLLM_"

GRANTED: Mapping[str, str] = {
    **dict.fromkeys(
        ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_USAGE_SOURCE", "VLLM_USAGE_STATS_SERVER"),
        "lsv never sends usage data",
    ),
    **dict.fromkeys(("VLLM_USE_V1", "VLLM_ENABLE_V1_MULTIPROCESSING"), "there is one engine, in its own process"),
    **dict.fromkeys(
        ("VLLM_TARGET_DEVICE", "VLLM_USE_PRECOMPILED", "VLLM_CPU_AVX512BF16", "VLLM_CONFIG_ROOT", "VLLM_VERSION"),
        "it only affects installation",
    ),
    "VLLM_NO_DEPRECATION_WARNING": "there are no such warnings",
    "VLLM_OFFLOAD_WEIGHTS_BEFORE_QUANT": "weights are always quantised one by one, on the host",
    "VLLM_INSTANCE_ID": "processes of an instance need no id",
}
"""Variables that ask for what is so anyway, and are taken in silence."""

WITHOUT_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(
        ("VLLM_RPC_TIMEOUT", "VLLM_RPC_GET_DATA_TIMEOUT_MS"),
        "the server waits as long as its engine sends heartbeats; --step-timeout limits a step",
    ),
    **dict.fromkeys(
        ("VLLM_PORT", "VLLM_LOOPBACK_IP"),
        "processes on one machine use private sockets, processes on several machines free ports; "
        "--host and --port are the server's address",
    ),
    "VLLM_RPC_BASE_PATH": "private sockets are in the system's temporary folder, set by TMPDIR",
    "VLLM_RINGBUFFER_WARNING_INTERVAL": "there is no ring buffer",
    "VLLM_ASSETS_CACHE": "assets of examples are kept below the folder of --cache-root",
    **dict.fromkeys(
        ("VLLM_USE_TRITON_FLASH_ATTN", "VLLM_FLASH_ATTN_VERSION", "VLLM_MLA_DISABLE"),
        "--attention-backend chooses how attention is computed",
    ),
    **dict.fromkeys(
        (
            "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_FUSED_MOE_CHUNK_SIZE", "VLLM_USE_TRITON_AWQ",
            "VLLM_TEST_FORCE_FP8_MARLIN",
        ),
        "the table of kernels chooses implementations, and lsv kernels prints it",
    ),
    **dict.fromkeys(
        (
            "VLLM_USE_RAY_SPMD_WORKER", "VLLM_USE_RAY_COMPILED_DAG", "VLLM_USE_RAY_COMPILED_DAG_NCCL_CHANNEL",
            "VLLM_ALLOW_ENGINE_USE_RAY",
        ),
        "plans and results use lsv's own sockets; with --distributed-executor-backend ray, Ray starts the ranks",
    ),
    **dict.fromkeys(
        ("VLLM_TEST_DYNAMO_GRAPH_CAPTURE", "VLLM_DYNAMO_USE_CUSTOM_DISPATCHER"), "it was for another compiler's tests"
    ),
    **dict.fromkeys(
        (
            "VLLM_OPENVINO_KVCACHE_SPACE", "VLLM_OPENVINO_CPU_KV_CACHE_PRECISION",
            "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS", "VLLM_XLA_CACHE_PATH",
        ),
        "it is for hardware without a plugin",
    ),
}  # fmt: skip
"""Variables that are known and can't be honoured; a warning says why. None of them changes an answer."""

_LINK = re.compile(
    r"(LSV|VLLM)(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes made this variable, for a service whose name begins as ours do.

    Of a service ``lsv`` on port 8000 those are ``LSV_PORT=tcp://…``, ``LSV_SERVICE_HOST``, ``LSV_PORT_8000_TCP_ADDR`` …
    (Kubernetes documentation, "Service", environment variables).
    """
    if _LINK.fullmatch(name) is None:
        return False
    return "://" in value if name.endswith("_PORT") and "_PORT_" not in name and "_SERVICE_" not in name else True
