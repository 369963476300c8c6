"""Launch lines that manuals of Intel's and Habana's servers print: each starts as it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lsv.cli.context import CommandContext
from lsv_base.errors import ConfigError
from lsv_bench.commands import serve as bench

from .conftest import Start

GAUDI = Path(__file__).resolve().parents[2] / "plugins" / "hpu" / "README.md"
XPU = """
    VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_WORKER_MULTIPROC_METHOD=spawn
    python3 -m vllm.entrypoints.openai.api_server --model org/P --served-model-name N --dtype=float16 --enforce-eager
    --port 8000 --host 0.0.0.0 --trust-remote-code --disable-sliding-window --gpu-memory-util=0.9
    --no-enable-prefix-caching --max-num-batched-tokens=8192 --disable-log-requests --max-model-len=8192 --block-size 64
    --quantization fp8 -tp=1
"""
LONG_CONTEXT = """
    VLLM_GRAPH_RESERVED_MEM=0.02 VLLM_PROMPT_BS_BUCKET_MIN=1 VLLM_PROMPT_BS_BUCKET_STEP=16 VLLM_PROMPT_BS_BUCKET_MAX=16
    VLLM_PROMPT_SEQ_BUCKET_MIN=24576 VLLM_PROMPT_SEQ_BUCKET_STEP=2048 VLLM_PROMPT_SEQ_BUCKET_MAX=32768
    VLLM_DECODE_BLOCK_BUCKET_MIN=1024 VLLM_DECODE_BLOCK_BUCKET_STEP=1024 VLLM_DECODE_BLOCK_BUCKET_MAX=33792
    VLLM_ENGINE_ITERATION_TIMEOUT_S=3600 VLLM_RPC_TIMEOUT=100000 VLLM_PROMPT_USE_FUSEDSDPA=1
    PT_HPU_ENABLE_LAZY_COLLECTIVES=true PT_HPUGRAPH_DISABLE_TENSOR_CACHE=1 VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
    vllm serve meta-llama/Meta-Llama-3.1-8B-Instruct --max-model-len 33792 --block-size 128 --max-num-seqs 128
"""


@pytest.mark.row("F-195", "F-458", "F-459", "F-460")
@pytest.mark.parametrize("platform", ["xpu", "cpu"])
def test_the_line_for_an_intel_gpu(start: Start, platform: str) -> None:
    found = start(XPU, platform=platform)
    assert found.config.served_names == ("N",)
    assert (found.config.block_size, found.config.quantization, found.config.prefix_caching) == (64, "fp8", False)
    assert found.settings["disable_log_requests"]
    assert "error" not in found.warnings


@pytest.mark.row("F-195", "F-860")
def test_the_older_line_for_an_intel_gpu(start: Start) -> None:
    line = f"TORCH_LLM_ALLREDUCE=1 VLLM_USE_V1=1 CCL_ZE_IPC_EXCHANGE=pidfd {XPU} --device=xpu --emulate"
    assert start(line).config.platform == "xpu"


@pytest.mark.row("F-720")
def test_the_line_of_a_model_that_sees(start: Start, tmp_path: Path) -> None:
    sees = f"--max-num-batched-tokens=5120 --max-model-len=5120 --allowed-local-media-path {tmp_path}"
    found = start(f"{XPU} {sees}", "qwen2_5_vl", platform="xpu")
    assert (found.config.model_offer, found.config.quantization) == ("qwen2_5_vl", "fp8")
    assert (found.config.max_num_batched_tokens, found.config.max_model_len) == (5120, 5120)
    assert found.settings["allowed_local_media_path"] == str(tmp_path)


@pytest.mark.row("F-666", "F-722")
def test_the_line_of_a_model_with_a_processor_of_its_own(start: Start) -> None:
    config = start(
        "vllm serve opendatalab/MinerU2.5-2509-1.2B --max-model-len 32768 --max-num-seqs 256 "
        "--logits-processors mineru_vl_utils:MinerULogitsProcessor",
        "qwen2_vl",
    ).config
    assert config.logits_processors == ("mineru_vl_utils:MinerULogitsProcessor",)
    assert (config.model_offer, config.max_model_len, config.max_num_seqs) == ("qwen2_vl", 32768, 256)


@pytest.mark.row("F-231")
def test_the_line_of_a_model_of_mistrals(start: Start, tmp_path: Path) -> None:
    line = (
        "vllm serve mistralai/Devstral-Small-2505 --tokenizer_mode mistral --config_format mistral "
        "--load_format mistral --tool-call-parser mistral --enable-auto-tool-choice --tensor-parallel-size 2"
    )
    with pytest.raises(ConfigError, match=r"tokenizer_mode=mistral reads tekken\.json, and .* has none"):
        start(line)
    file = tmp_path / "llama" / "tekken.json"
    file.write_text("{}")
    found = start(line)
    assert (found.config.tokenizer, found.config.load_format) == (str(file), "auto")
    assert found.settings["tool_call_parser"] == "mistral"


@pytest.mark.row("F-461")
def test_the_line_that_is_bound_to_cores(start: Start) -> None:
    assert start(f"numactl -C 0-17 {XPU.split('spawn')[1]}", platform="xpu").config.platform == "xpu"


@pytest.mark.row("F-196", "F-274", "F-543")
def test_the_line_for_gaudis(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "quant.json"
    file.write_text(json.dumps({"mode": "QUANTIZE", "dump_stats_path": str(tmp_path / "stats")}))
    for rank in range(8):
        (tmp_path / f"stats_hooks_maxabs_{rank}_8.json").write_text("{}")
    found = start(
        f"QUANT_CONFIG={file} vllm serve meta-llama/Llama-3.1-405B-Instruct --dtype bfloat16 --max-model-len 2048 "
        "--block-size 128 --max-num-seqs 32 --quantization inc --kv-cache-dtype fp8_inc --weights-load-device cpu "
        "--tensor-parallel-size 8",
        platform="hpu",
    )
    assert (found.config.quantization, found.config.kv_dtype, found.config.topology.tensor) == ("inc", "fp8_e4m3", 8)
    assert "weights-load-device" not in found.warnings


@pytest.mark.row("F-197", "F-254", "F-299", "F-301")
def test_the_line_that_drafts(start: Start) -> None:
    found = start(
        "python3 -m vllm.entrypoints.openai.api_server --host 0.0.0.0 --port 8000 --model facebook/opt-6.7b --seed 42 "
        "-tp 1 --speculative_model facebook/opt-125m --use-v2-block-manager --num_speculative_tokens 5 "
        "--gpu_memory_utilization 0.8",
        "opt",
    )
    drafts = found.config.drafts
    assert drafts is not None
    assert (drafts.drafter, drafts.most) == ("draft_model", 5)
    assert "speculative-model" not in found.warnings
    assert "block-manager" not in found.warnings


@pytest.mark.row("F-198", "F-282", "F-283")
def test_the_line_that_spreads_experts(start: Start) -> None:
    found = start(
        "vllm serve Qwen/Qwen3-30B-A3B-FP8 -tp 8 --enable-expert-parallel --all2all-backend allgather_reducescatter",
        "moe-fp8",
        platform="cuda",
    )
    assert (found.config.topology.tensor, found.config.topology.expert) == (8, 8)
    assert "enable_expert_parallel" not in {reason.name for reason in found.config.reasons}


@pytest.mark.row("F-547", "F-546", "F-520", "F-422")
def test_the_line_for_long_contexts_on_a_gaudi(start: Start) -> None:
    found = start(LONG_CONTEXT, platform="hpu")
    assert found.config.options["hpu.prompt_seq_bucket_max"] == 32768
    assert found.config.step_timeout == 3600
    assert "VLLM_RPC_TIMEOUT has no effect: the server waits as long as its engine" in found.warnings


@pytest.mark.row("F-882", "F-475", "F-476", "F-534", "F-549")
@pytest.mark.parametrize("line", re.findall(r"^lsv (serve .*)$", GAUDI.read_text(encoding="utf-8"), re.MULTILINE))
def test_the_lines_of_the_guide_to_gaudis(start: Start, line: str) -> None:
    config = start(line, platform="hpu").config
    assert (config.platform, config.block_size, config.dtype) == ("hpu", 128, "bfloat16")
    assert f"--max-model-len {config.max_model_len}" in line


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Ray were installed."""
    monkeypatch.setattr("lsv_ray.plugin.is_installed", lambda: True)


@pytest.mark.row("F-470", "F-568", "F-582", "F-590")
@pytest.mark.usefixtures("ray")
def test_the_line_for_gaudis_of_several_machines(start: Start) -> None:
    (line,) = re.findall(r"^GLOO_\S+ (HCCL_\S+ lsv serve .*)$", GAUDI.read_text(encoding="utf-8"), re.MULTILINE)
    config = start(line.replace("lsv serve", "vllm serve"), platform="hpu").config
    assert (config.executor, config.topology.ranks) == ("ray", 16)
    staged = start(
        "vllm serve org/x --tensor-parallel-size 8 --pipeline_parallel_size 2 --distributed-executor-backend ray",
        platform="hpu",
    ).config
    assert (staged.topology.ranks, staged.in_flight) == (16, 2)


@pytest.mark.row("F-464", "F-571", "F-572")
@pytest.mark.parametrize(("platform", "more"), [("xpu", "--xpu-emulated-devices 8"), ("hpu", ""), ("cuda", "")])
def test_all_kinds_of_parallelism_at_once(start: Start, platform: str, more: str) -> None:
    topology = start(f"vllm serve org/x -tp 2 -pp 2 --dp 2 {more}", platform=platform).config.topology
    assert (topology.ranks, topology.devices) == (2 * 2, 2 * 2 * 2)
    replicas = start(f"vllm serve org/x -tp 2 --dp 4 {more}", platform=platform).config.topology
    assert (replicas.ranks, replicas.devices) == (2, 8)


@pytest.mark.row("F-572")
def test_experts_beside_stages(start: Start) -> None:
    topology = start("vllm serve org/x -tp 2 -pp 2 --enable-expert-parallel", "moe-fp8").config.topology
    assert (topology.tensor, topology.pipeline, topology.expert) == (2, 2, 2)


@pytest.mark.parametrize("arguments", ["--distributed-executor-backend mp", "--distributed-executor-backend=uni"])
def test_ranks_on_one_machine(start: Start, arguments: str) -> None:
    assert start(f"vllm serve org/x -tp 2 {arguments}").config.topology.tensor == 2


def test_what_a_job_of_a_cluster_hands_on(start: Start) -> None:
    found = start(
        "vllm serve Qwen/Qwen3-30B-A3B-FP8 --tensor-parallel-size 8 --pipeline-parallel-size 1 --data-parallel-size 1 "
        "--enable-expert-parallel --max-model-len 8192 --gpu-memory-utilization 0.9",
        "moe-fp8",
        platform="cuda",
    )
    assert found.config.topology.tensor == 8


@pytest.mark.row("F-313", "F-190", "F-191")
def test_the_line_of_the_benchmark() -> None:
    line = (
        "--model /llm/models/DeepSeek-R1-Distill-Qwen-7B --served-model-name DeepSeek-R1-Distill-Qwen-7B "
        "--dataset-name random --random-input-len=1024 --random-output-len=512 --ignore-eos --num-prompt 10 "
        "--trust_remote_code --request-rate inf --backend vllm --port=8000 --profile"
    )
    context = CommandContext.open(line.split())
    settings = context.settings(line.split(), scope="client", extra=bench.SETTINGS)
    bench.check(settings)
    assert bench.find_model(settings) == "DeepSeek-R1-Distill-Qwen-7B"
    assert settings["random_output_len"] == 512
