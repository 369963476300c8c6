"""Launch lines as the predecessors' documents print them.

A line begins with its variables. Its first word is changed to lsv, ranks beyond two become two, and the port is free.
"""

from __future__ import annotations

import shlex
from typing import NamedTuple

_XPU = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_WORKER_MULTIPROC_METHOD=spawn"
_OLDER = f"TORCH_LLM_ALLREDUCE=1 VLLM_USE_V1=0 CCL_ZE_IPC_EXCHANGE=pidfd {_XPU}"
_COMMON = "--dtype=float16 --enforce-eager --port 8000 --host 0.0.0.0 --trust-remote-code"
_TEXT = f"{_COMMON} --disable-sliding-window --gpu-memory-util=0.9"
_QUIET = "--no-enable-prefix-caching --disable-log-requests"
_MEDIA = f"{_COMMON} --gpu-memory-util=0.9 {_QUIET} --max-num-batched-tokens=5120 --max-model-len=5120"
_POOLING = f"{_TEXT} {_QUIET} --max-num-batched-tokens=2048 --max-model-len=2048"
_8K = "--max-num-batched-tokens=8192 --disable-log-requests --max-model-len=8192 --block-size 64"
_R1 = "--model /llm/models/DeepSeek-R1-Distill-Qwen-7B --served-model-name DeepSeek-R1-Distill-Qwen-7B"


AS_IT_STANDS, WITH_THE_FLAG = "as it stands", "with the flag that its error names"
"""How a line is answered."""


class Line(NamedTuple):
    """A launch line, the checkpoint it needs, the emulated card it is for, and the request of its document."""

    name: str
    """Document and section, then what it shows."""
    words: str
    model: str
    """Its name on the Hub, or its folder below ``/llm/models``."""
    checkpoint: str
    request: str
    card: str = ""


LINES = [
    Line("000 §1.4 launch, fp8", f"{_XPU} vllm serve {_R1} {_TEXT} {_8K} --quantization fp8 -tp=1",
         "DeepSeek-R1-Distill-Qwen-7B", "qwen2", "chat", "xpu"),
    Line("000 §1.5 benchmark_serving", f"{_XPU} vllm serve {_R1} {_TEXT} {_8K} -tp=1",
         "DeepSeek-R1-Distill-Qwen-7B", "qwen2", "bench", "xpu"),
    Line("000 §2.2 sym_int4",
         f"{_XPU} vllm serve --model /llm/models/DeepSeek-R1-Distill-Qwen-7B {_TEXT} --no-enable-prefix-caching {_8K} "
         "--quantization sym_int4 -tp=1",
         "DeepSeek-R1-Distill-Qwen-7B", "qwen2", "chat", "xpu"),
    Line("000 §2.3 bge-m3 --task embed",
         f"{_XPU} vllm serve --model /llm/models/bge-m3 --served-model-name bge-m3 --task embed {_POOLING} "
         "--block-size 64 -tp=1",
         "bge-m3", "bge-m3", "embed", "xpu"),
    Line("000 §2.3 bge-reranker-base --task classify",
         f"{_XPU} vllm serve --model /llm/models/bge-reranker-base --served-model-name bge-reranker-base "
         f"--task classify {_POOLING} --block-size 64 -tp=1",
         "bge-reranker-base", "bge-reranker", "rerank", "xpu"),
    Line("000 §2.4 Qwen2.5-VL",
         f"{_XPU} vllm serve --model /llm/models/Qwen2.5-VL-7B-Instruct --served-model-name Qwen2.5-VL-7B-Instruct "
         f"--allowed-local-media-path /llm/models/test {_MEDIA} --block-size 64 --quantization fp8 -tp=1",
         "Qwen2.5-VL-7B-Instruct", "qwen2_5_vl", "picture", "xpu"),
    Line("000 §2.4.1 Whisper",
         f"{_OLDER} python3 -m vllm.entrypoints.openai.api_server --model /llm/models/whisper-medium "
         f"--served-model-name whisper-medium --allowed-local-media-path /llm/models/test {_MEDIA} --block-size 16 "
         "--quantization fp8 -tp=1",
         "whisper-medium", "whisper", "transcribe", "xpu"),
    Line("000 §2.4.3 MinerU",
         "vllm serve opendatalab/MinerU2.5-2509-1.2B --max-model-len 32768 --max-num-seqs 256 "
         "--logits-processors mineru_vl_utils:MinerULogitsProcessor",
         "opendatalab/MinerU2.5-2509-1.2B", "qwen2_vl", "chat"),
    Line("000 §2.5 Qwen2.5-Omni",
         f"{_XPU} vllm serve --model /llm/models/Qwen2.5-Omni-7B --served-model-name Qwen2.5-Omni-7B "
         f"--allowed-local-media-path /llm/models/test {_MEDIA} --block-size 64 --quantization fp8 -tp=1",
         "Qwen2.5-Omni-7B", "omni", "picture and sound"),
    Line("000 §2.9 several machines, Ray",
         "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_WORKER_MULTIPROC_METHOD=spawn VLLM_OFFLOAD_WEIGHTS_BEFORE_QUANT=1 "
         "CCL_ATL_TRANSPORT=ofi VLLM_HOST_IP=127.0.0.1 vllm serve --model /llm/models/Qwen2.5-7B-Instruct "
         f"{_COMMON} --disable-sliding-window --gpu-memory-util=0.9 --no-enable-prefix-caching "
         "--max-num-batched-tokens=8192 --disable-log-requests --max-model-len=20000 --block-size 64 "
         "--served-model-name test -tp=2 -pp=1 --distributed-executor-backend ray",
         "Qwen2.5-7B-Instruct", "qwen2", "chat", "xpu"),
    Line("001 §1.3 --device=xpu",
         "TORCH_LLM_ALLREDUCE=1 VLLM_USE_V1=1 CCL_ZE_IPC_EXCHANGE=pidfd VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 "
         f"VLLM_WORKER_MULTIPROC_METHOD=spawn python3 -m vllm.entrypoints.openai.api_server {_R1} {_TEXT} --device=xpu "
         f"--no-enable-prefix-caching {_8K} --quantization fp8 -tp=1",
         "DeepSeek-R1-Distill-Qwen-7B", "qwen2", "chat", "xpu"),
    Line("001 §2.3 reranker --task embed",
         f"{_OLDER} python3 -m vllm.entrypoints.openai.api_server --model /llm/models/bge-reranker-base "
         f"--served-model-name bge-reranker-base --task embed {_TEXT} --device=xpu --no-enable-prefix-caching "
         "--max-num-batched-tokens=2048 --disable-log-requests --max-model-len=2048 --block-size 16 --quantization fp8 "
         "-tp=1",
         "bge-reranker-base", "bge-reranker", "rerank", "xpu"),
    Line("002 INC, fp8_inc",
         "vllm serve meta-llama/Llama-3.1-405B-Instruct --dtype bfloat16 --max-model-len 2048 --block-size 128 "
         "--max-num-seqs 32 --quantization inc --kv-cache-dtype fp8_inc --weights-load-device cpu "
         "--tensor-parallel-size 2",
         "meta-llama/Llama-3.1-405B-Instruct", "llama", "chat", "hpu"),
    Line("003 serve Qwen2.5", "vllm serve Qwen/Qwen2.5-1.5B-Instruct",
         "Qwen/Qwen2.5-1.5B-Instruct", "qwen2", "chat"),
    Line("003 expert parallel, profiler",
         "vllm serve Qwen/Qwen3-30B-A3B-FP8 -tp 2 --enable-expert-parallel "
         '--profiler-config \'{"profiler": "torch", "torch_profiler_dir": "/llm/models/traces"}\'',
         "Qwen/Qwen3-30B-A3B-FP8", "experts", "profile"),
    Line("004 template_chatml.jinja",
         "vllm serve lmsys/vicuna-7b --chat-template ./examples/template_chatml.jinja",
         "lmsys/vicuna-7b", "llama", "chat"),
    Line("004 mistral tools",
         "vllm serve mistralai/Mistral-7B-Instruct-v0.3 --enable-auto-tool-choice --tool-call-parser mistral "
         "--chat-template examples/tool_chat_template_mistral.jinja",
         "mistralai/Mistral-7B-Instruct-v0.3", "mistral", "tools"),
    Line("004 LLaVA server", "vllm serve llava-hf/llava-1.5-7b-hf --chat-template template_llava.jinja",
         "llava-hf/llava-1.5-7b-hf", "llava", "picture"),
    Line("004 draft model server",
         "python -m vllm.entrypoints.openai.api_server --host 0.0.0.0 --port 8000 --model facebook/opt-6.7b --seed 42 "
         "-tp 1 --speculative_model facebook/opt-125m --use-v2-block-manager --num_speculative_tokens 5 "
         "--gpu_memory_utilization 0.8",
         "facebook/opt-6.7b", "opt", "chat"),
    Line("004 --api-key, OpenAI client",
         "vllm serve NousResearch/Meta-Llama-3-8B-Instruct --dtype auto --api-key token-abc123",
         "NousResearch/Meta-Llama-3-8B-Instruct", "llama", "chat"),
]  # fmt: skip
"""The lines that start a server. Programs of the same documents are in ``tests/compat``."""


def read(words: str, models: str) -> tuple[dict[str, str], list[str]]:
    """The variables of a line, and the arguments of ``lsv serve``; ``models`` takes the place of ``/llm/models``."""
    found = shlex.split(words.replace("/llm/models", models))
    variables = {}
    while "=" in found[0]:
        name, _, value = found.pop(0).partition("=")
        variables[name] = value
    while found[0] in ("vllm", "serve", "python", "python3", "-m", "vllm.entrypoints.openai.api_server"):
        found.pop(0)
    return variables, found
