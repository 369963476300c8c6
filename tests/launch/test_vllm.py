"""Launch lines as users of vLLM have them: they start, and what can be honoured is."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path

import pytest

from lsv_base.errors import ConfigError

from .conftest import Start

STARTS = [
    "vllm serve org/x --generation-config vllm --kv-cache-memory-bytes 64M --api-server-count 2 --enable-log-requests",
    "vllm serve org/x --runner generate --convert none --max-log-len 100 --code-revision main --tokenizer-revision v1",
    "vllm serve org/x --runner pooling --convert embed --ignore-patterns 'original/**/*' '*.pth'",
    "vllm serve org/x --chat-template-content-format openai --trust-remote-code --tokenizer-mode auto",
    "vllm serve org/x --swap-space 4 --num-scheduler-steps 1 --scheduler-delay-factor 0 --use-v2-block-manager",
    "vllm serve org/x --disable-custom-all-reduce --disable-frontend-multiprocessing --distributed-executor-backend mp",
    "vllm serve org/x --weights-load-device cpu --quantization None --tokenizer-pool-size 0 --load-format auto",
    "vllm serve org/x --skip-tokenizer-init --disable-log-stats",
    "vllm serve org/x --enable-chunked-prefill --max-num-batched-tokens 8192 --max-num-seqs 64 --gpu-memory-util 0.9",
    "vllm serve org/x --compilation-config '{\"level\": 3}' --cudagraph-capture-sizes 1 2 4 --disable-cascade-attn",
    "vllm serve org/x --enable-prompt-tokens-details --enable-request-id-headers --disable-uvicorn-access-log",
    "vllm serve org/x --uvicorn-log-level trace --disable-log-stats --override-generation-config '{\"top_k\": 3}'",
    "vllm serve org/x --attention-backend FLASH_ATTN --data-parallel-size 1 --max-loras 4 --mm-processor-cache-gb 0",
    "VLLM_USE_V1=1 VLLM_LOGGING_LEVEL=DEBUG VLLM_ATTENTION_BACKEND=TORCH_SDPA vllm serve org/x --seed 0",
    "VLLM_CPU_OMP_THREADS_BIND=auto VLLM_CPU_KVCACHE_SPACE=1 VLLM_PORT=5000 VLLM_HOST_IP=10.0.0.1 vllm serve org/x",
    "VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_WORKER_MULTIPROC_METHOD=fork VLLM_PLUGINS=lora_resolver vllm serve org/x",
]


@pytest.mark.row("F-188", "F-192", "F-256", "F-264", "F-276", "F-286", "F-830", "F-834", "F-445")
@pytest.mark.parametrize("line", STARTS)
def test_a_line_starts(start: Start, line: str) -> None:
    found = start(line)
    assert "unknown" not in found.warnings


@pytest.mark.row("F-189")
def test_the_line_of_the_older_command(start: Start) -> None:
    assert start("python3 -m vllm.entrypoints.openai.api_server --model org/x").config.served_names == ("org/x",)


@pytest.mark.row(
    "F-251",
    "F-252",
    "F-253",
    "F-258",
    "F-259",
    "F-261",
    "F-262",
    "F-266",
    "F-267",
    "F-279",
    "F-378",
    "F-395",
    "F-998",
    "F-974",
)
@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ("", "memory_share", None), ("--gpu-memory-utilization 0.5", "memory_share", 0.5),
        ("", "block_size", 32), ("--block-size 16", "block_size", 16), ("--block-size 128", "block_size", 128),
        ("", "prefix_caching", True), ("--no-enable-prefix-caching", "prefix_caching", False),
        ("--num-gpu-blocks-override 80", "num_blocks", 80),
        ("--kv-cache-dtype auto", "kv_dtype", "auto"), ("--kv-cache-dtype fp8", "kv_dtype", "fp8_e4m3"),
        ("--kv-cache-dtype fp8_e5m2", "kv_dtype", "fp8_e5m2"), ("--kv-cache-dtype fp8_e4m3", "kv_dtype", "fp8_e4m3"),
        ("", "max_num_batched_tokens", 2048), ("--max-num-batched-tokens 5120", "max_num_batched_tokens", 5120),
        ("", "max_num_seqs", 256), ("--max-num-seqs 32", "max_num_seqs", 32),
        ("--enable-chunked-prefill", "chunked_prefill", True),
        ("--no-enable-chunked-prefill --max-num-batched-tokens 131072", "chunked_prefill", False),
        ("", "max_logprobs", 20), ("--max-logprobs 5", "max_logprobs", 5),
        ("", "enforce_eager", False), ("--enforce-eager", "enforce_eager", True),
        ("--tensor-parallel-size 2", "topology.tensor", 2), ("-tp 2", "topology.tensor", 2),
    ],
)  # fmt: skip
def test_options_of_memory_and_steps_reach_the_engine(start: Start, arguments: str, name: str, value: object) -> None:
    assert attrgetter(name)(start(f"vllm serve org/x {arguments}").config) == value


def test_bytes_of_the_cache_are_honoured(start: Start) -> None:
    assert start("vllm serve org/x --kv-cache-memory-bytes 64M").config.kv_bytes == 64 << 20


@pytest.mark.row("F-819", "F-422")
def test_variables_reach_the_engine(start: Start) -> None:
    found = start("VLLM_ENGINE_ITERATION_TIMEOUT_S=60 VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve org/x")
    assert found.config.step_timeout == 60


def test_what_samples_by_default(start: Start, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({}))
    assert start("vllm serve org/x").config.generation is None
    assert start("vllm serve org/x --generation-config vllm").config.generation == ""
    assert start(f"vllm serve org/x --generation-config {other}").config.generation == str(other)
    line = "vllm serve org/x --override-generation-config '{\"temperature\": 0.5}'"
    assert start(line).config.sampling == {"temperature": 0.5}


@pytest.mark.row("F-369", "F-830")
@pytest.mark.parametrize("name", ["FLASH_ATTN", "TORCH_SDPA", "XFORMERS", "FLASHINFER", "ROCM_FLASH"])
def test_another_servers_backend_is_the_platforms_first(start: Start, name: str) -> None:
    config = start(f"VLLM_ATTENTION_BACKEND={name} vllm serve org/x").config
    assert config.attention == "cpu-paged"
    (reason,) = [reason for reason in config.reasons if reason.name == "attention"]
    assert f"{name} is not lsv's" in reason.why


@pytest.mark.row("F-930", "F-931", "F-932")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--allow-credentials --allowed-origins '*'", "allow-credentials needs allowed-origins by name"),
        ("--scheduling-policy foo", "foo"),
        ("--load-format tensorizer", "tensorizer is not one of auto, safetensors, pt, sharded_state, dummy"),
        ("--block-size 8", "block_size=8: cpu-paged allows 16, 32, 64, 128"),
        ("--ssl-certfile nowhere.pem --ssl-keyfile nowhere.pem", "ssl-certfile and ssl-keyfile can't be used"),
        ("--ssl-cert-reqs 2", "ssl-cert-reqs requires HTTPS"),
        ("--root-path llm/", "root-path must look like /prefix"),
        ("--chat-template nowhere.jinja", "nowhere.jinja"),
        ("--api-accounts nowhere.toml", "nowhere.toml"),
        ("--override-generation-config '{\"temperature\": -1}'", "temperature"),
        ('--override-generation-config \'{"stop": "x"}\'', "override_generation_config must be a JSON object"),
        ("--uds /tmp/x.sock --webui", "leave --uds out"),
    ],
)
def test_what_can_not_be_is_refused_before_an_engine_starts(start: Start, arguments: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        start(f"vllm serve org/x {arguments}")
    assert words in caught.value.message


@pytest.mark.row("F-275", "F-439", "F-554", "F-556", "F-559")
@pytest.mark.parametrize("device", ["neuron", "openvino", "tpu"])
def test_hardware_that_nothing_drives_is_refused_with_what_is_driven(start: Start, device: str) -> None:
    with pytest.raises(ConfigError) as caught:
        start(f"vllm serve org/x --device {device}")
    assert f"there is no platform '{device}'" in caught.value.message
    assert all(name in caught.value.message for name in ("cpu", "cuda", "rocm", "xpu", "hpu", "torch"))


@pytest.mark.row("F-275")
@pytest.mark.parametrize("device", ["cpu", "cuda", "rocm", "xpu", "hpu"])
def test_devices_by_name(start: Start, device: str) -> None:
    assert start(f"vllm serve org/x --device {device} {'--emulate' * (device != 'cpu')}").config.platform == device


@pytest.mark.row("F-863", "F-864", "F-929")
@pytest.mark.parametrize("service", ["LSV", "VLLM", "LSV_API"])
def test_a_service_of_kubernetes_may_have_the_name(start: Start, service: str) -> None:
    found = start(
        f"{service}_PORT=tcp://10.0.0.1:8000 {service}_SERVICE_HOST=10.0.0.1 {service}_SERVICE_PORT=8000 "
        f"{service}_SERVICE_PORT_HTTP=8000 {service}_PORT_8000_TCP=tcp://10.0.0.1:8000 "
        f"{service}_PORT_8000_TCP_PROTO=tcp "
        f"{service}_PORT_8000_TCP_PORT=8000 {service}_PORT_8000_TCP_ADDR=10.0.0.1 vllm serve org/x"
    )
    assert found.settings["port"] == 8000
    assert found.settings.source("port") == "default"
    assert found.warnings == ""


@pytest.mark.row("F-230")
@pytest.mark.parametrize(
    ("arguments", "fetched"),
    [
        ("", [("org/x", None)]),
        ("--tokenizer-revision v2", [("org/x", None), ("org/x", "v2")]),
        ("--revision v2 --tokenizer-revision v2", [("org/x", "v2")]),
        ("--tokenizer org/t --tokenizer-revision v3", [("org/x", None), ("org/t", "v3")]),
    ],
)
def test_a_tokenizer_has_a_revision_of_its_own(
    start: Start, arguments: str, fetched: list[tuple[str, str | None]]
) -> None:
    assert start(f"vllm serve org/x {arguments}").fetched == fetched
