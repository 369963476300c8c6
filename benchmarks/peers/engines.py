"""The engines that are compared: how each is started, which files it reads, and how many bits a weight has in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LSV = "lsv"
"""The program whose engines are compared with all others."""


@dataclass(frozen=True)
class Engine:
    """``precision`` is the class it competes in. ``model`` is a path under the folder of models, where {shape} stands
    for the shape's name; ``bits`` of a weight in the layers and in the head, scales included. ``server`` is the command
    line of its HTTP server for S1; in it {python}, {program}, {model}, {port} and {threads} are filled in, as {cores}
    (a list of numbers) is in the environment. {sequences}, {kv_gib} and {cells} (tokens of all requests) come from the
    workloads.
    """

    program: str
    adapter: str
    precision: str
    model: str
    bits: tuple[float, float]
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    server: tuple[str, ...] = ()


DRAFTS: Mapping[str, Any] = {
    "method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 5, "prompt_lookup_min": 2,
}  # fmt: skip
"""Prompt lookup, for engines that have it."""


def _lsv(precision: str, bits: tuple[float, float], model: str = "{shape}", **options: Any) -> Engine:
    server = ("{python}", "-m", "lsv", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}")
    return Engine(
        program=LSV,
        adapter="lsv_llm",
        precision=precision,
        model=model,
        bits=bits,
        options=options,
        server=(
            *server, "--served-model-name", "m", "--max-model-len", "2048", "--max-num-seqs", "32", *_flags(options),
        ),
    )  # fmt: skip


def _flags(options: Mapping[str, Any]) -> Iterator[str]:
    """What servers are given for ``options``."""
    for name, value in options.items():
        yield f"--{name.replace('_', '-')}"
        yield value if isinstance(value, str) else json.dumps(value)


def _vllm(precision: str, bits: tuple[float, float], model: str, **options: Any) -> Engine:
    return Engine(
        program="vllm",
        adapter="vllm_llm",
        precision=precision,
        model=model,
        bits=bits,
        options=options,
        environment={
            "VLLM_CPU_KVCACHE_SPACE": "{kv_gib}",
            "VLLM_CPU_OMP_THREADS_BIND": "{cores}",
            "VLLM_NO_USAGE_STATS": "1",
            # its saved functions do not load with the torch it is installed beside, and each start compiled anew
            "VLLM_USE_AOT_COMPILE": "0",
        },
        server=(
            "{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{model}", "--served-model-name", "m",
            "--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16", "--max-model-len", "2048",
            "--max-num-seqs", "32", *_flags(options),
        ),
    )  # fmt: skip


def _openvino(precision: str, bits: tuple[float, float], model: str) -> Engine:
    return Engine("openvino", "openvino_pipeline", precision, model, bits)


def _llama_cpp(precision: str, bits: tuple[float, float], model: str) -> Engine:
    command = (
        "{program}", "--threads", "{threads}", "--threads-batch", "{threads}", "--ctx-size", "{cells}",
        "--parallel", "{sequences}", "--kv-unified", "--batch-size", "2048", "--host", "127.0.0.1",
    )  # fmt: skip
    return Engine(
        program="llamacpp",
        adapter="llama_server",
        precision=precision,
        model=model,
        bits=bits,
        options={"command": command},
        server=(*command, "--model", "{model}", "--port", "{port}"),
    )


ENGINES: dict[str, Engine] = {
    "lsv-bf16": _lsv("bf16", (16, 16)),
    "lsv-bf16-ngram": _lsv("bf16 with drafts", (16, 16), speculative_config=DRAFTS),
    "lsv-int8": _lsv("int8", (8, 8), quantization="int8"),
    "lsv-int4": _lsv("int4", (4.5, 8), quantization="sym_int4_g64"),
    "lsv-fp8": _lsv("fp8", (8, 8), quantization="fp8"),
    "lsv-w4a16": _lsv("int4, 16-bit activations", (4.25, 16), model="{shape}-w4a16"),
    "vllm-bf16": _vllm("bf16", (16, 16), "{shape}"),
    "vllm-bf16-ngram": _vllm("bf16 with drafts", (16, 16), "{shape}", speculative_config=DRAFTS),
    "vllm-w8a8": _vllm("int8", (8, 16), "{shape}-w8a8"),
    "vllm-w4a16": _vllm("int4, 16-bit activations", (4.25, 16), "{shape}-w4a16"),
    "openvino-f16": _openvino("bf16", (16, 16), "{shape}-openvino-fp16"),
    "openvino-int8": _openvino("int8", (8, 8), "{shape}-openvino-int8"),
    "openvino-int4": _openvino("int4", (4.25, 8), "{shape}-openvino-int4"),
    "llamacpp-bf16": _llama_cpp("bf16", (16, 16), "{shape}-bf16.gguf"),
    "llamacpp-q8_0": _llama_cpp("int8", (8.5, 8.5), "{shape}-q8_0.gguf"),
    "llamacpp-q4_0": _llama_cpp("int4", (4.5, 4.5), "{shape}-q4_0.gguf"),
    "transformers-bf16": Engine("transformers", "transformers_generate", "bf16", "{shape}", (16, 16)),
}
"""int8 and int4 engines do less work for a token than bf16 ones; none of this speaks of quality."""
