"""Whole engines under emulation whose kernels and attention are a vendor's, answered by its fake."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv_testing.tiny import tiny
from lsv_xpu import libraries

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
VENDORS = {"vllm": "xpu-flash-emulated", "ipex": "ipex-paged-emulated"}
PLAIN = {"max_num_seqs": 1, "enforce_eager": True, "enable_prefix_caching": False, "async_scheduling": False}
FAST = {"max_num_seqs": 4, "enforce_eager": False, "max_num_batched_tokens": 32, "xpu.graph": "1"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Heads of 64 features, the smallest that kernels are compiled for."""
    return str(
        tiny("llama", tmp_path_factory.mktemp("llama"), head_dim=64, num_attention_heads=2, intermediate_size=128)
    )


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    libraries.forget()


def answers(checkpoint: str, vendor: str, **options: Any) -> list[tuple[int, ...]]:
    rng = random.Random(3)
    gc.collect()  # the cache of an engine before
    prompts = [[rng.randrange(5, 250) for _ in range(length)] for length in (1, 63, 64, 65, 130)]
    with LLM(
        checkpoint,
        platform="xpu",
        emulate=True,
        dtype="float16",
        max_model_len=192,
        block_size=64,
        skip_tokenizer_init=True,
        attention_backend=VENDORS[vendor],
        **{"xpu.emulated_kernels": vendor, "xpu.emulated_memory": 0.5, **options},
    ) as llm:
        return [answer.outputs[0].token_ids for answer in llm.generate(prompts, PARAMS, use_tqdm=False)]


@pytest.mark.parametrize(
    ("vendor", "quantization"),
    [
        ("vllm", "sym_int4_g32"),
        ("ipex", None),
        pytest.param("vllm", None, marks=pytest.mark.slow),
        pytest.param("vllm", "fp8", marks=pytest.mark.slow),
        pytest.param("vllm", "asym_int4", marks=pytest.mark.slow),
    ],
)
def test_graphs_and_batches_change_no_token(checkpoint: str, vendor: str, quantization: str | None) -> None:
    plain = answers(checkpoint, vendor, quantization=quantization, **PLAIN)
    assert answers(checkpoint, vendor, quantization=quantization, **FAST) == plain


@pytest.mark.slow
def test_experts_in_graphs(tmp_path: Path) -> None:
    sparse = str(tiny("qwen3_moe", tmp_path / "moe", head_dim=64, num_attention_heads=2))
    assert answers(sparse, "vllm", **FAST) == answers(sparse, "vllm", **PLAIN)


def test_the_vendor_serves_its_ops(checkpoint: str) -> None:
    answers(checkpoint, "vllm", quantization="sym_int4_g32", **PLAIN)
    calls = libraries.obtain(libraries.VLLM).calls
    expected = {
        "rms_norm", "fused_add_rms_norm", "rotary_embedding", "silu_and_mul", "int4_gemm_w4a16",
        "reshape_and_cache_flash", "flash_attn_varlen_func", "varlen_fwd",
    }  # fmt: skip
    assert set(calls) == expected
