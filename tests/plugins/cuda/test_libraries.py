"""Which libraries of attention can be used beside which GPUs and packages."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lsv import LLM, SamplingParams
from lsv.capabilities import DeviceInfo
from lsv.config import EngineConfig
from lsv.plugins import Plugins, load
from lsv.resolve import resolve
from lsv.settings import Declared, gather
from lsv.settings.flags import parse
from lsv.settings.options import for_scope
from lsv_base.errors import ConfigError
from lsv_cuda import libraries
from lsv_cuda.fakes import flash_attn, flashinfer
from lsv_cuda.machine import describe
from lsv_cuda.platform import CudaPlatform
from lsv_runtime.emulation.fakes import FakeGraph
from lsv_runtime.emulation.vendors.signatures import Package, signature
from lsv_runtime.worker.load.survey import bound_ops
from lsv_testing.tiny import tiny

EVERYTHING = {
    "flashinfer-python": "0.6.18", "flashinfer-jit-cache": "0.6.18", "flash-attn": "2.8.4", "flash-attn-3": "3.0.0"
}  # fmt: skip


def gpu(major: int, minor: int) -> DeviceInfo:
    return describe(0, "made-up GPU", 1 << 30, major, minor, 100)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    libraries.forget()


@pytest.mark.parametrize(
    ("why_not", "packages", "capability", "words"),
    [
        (libraries.missing_flashinfer, EVERYTHING, (7, 5), None),
        (
            libraries.missing_flashinfer,
            EVERYTHING,
            (7, 0),
            "7.5 or newer, which FlashInfer needs (found made-up",
        ),
        (libraries.missing_flashinfer, {}, (9, 0), "the package flashinfer-python"),
        (libraries.missing_flashinfer, {"flashinfer-python": "0.6.18"}, (9, 0), "flashinfer install-jit-cache-wheel"),
        (libraries.missing_flash_attn_2, EVERYTHING, (12, 0), None),
        (libraries.missing_flash_attn_2, EVERYTHING, (7, 5), "8.0 or newer, which flash-attn needs"),
        (libraries.missing_flash_attn_2, {}, (9, 0), "the package flash-attn, built for this torch"),
        (libraries.missing_flash_attn_3, EVERYTHING, (9, 0), None),
        (libraries.missing_flash_attn_3, EVERYTHING, (8, 6), None),
        (libraries.missing_flash_attn_3, EVERYTHING, (10, 0), "8.x or 9.x"),
        (libraries.missing_flash_attn_3, {}, (9, 0), "the package flash-attn-3"),
    ],
)
def test_what_is_missing(
    why_not: Callable[..., str | None],
    packages: dict[str, str],
    capability: tuple[int, int],
    words: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(libraries, "installed", packages.get)
    monkeypatch.setattr(libraries, "_has_nvcc", lambda: False)
    found = why_not([gpu(*capability)])
    assert found is None if words is None else words in (found or "")


@pytest.mark.parametrize("package", [flashinfer.PACKAGE, flash_attn.PACKAGE_2, flash_attn.PACKAGE_3])
def test_what_was_read_says_where(package: Package) -> None:
    assert f"version {package.version}" in package.source
    assert all(str(signature(text)) for text in package.functions.values())


def resolved(checkpoint: str, *flags: str) -> tuple[EngineConfig, Plugins]:
    plugins = load()
    declared = Declared(for_scope("engine", plugins.settings()))
    line = parse([f"--model={checkpoint}", "--platform=cuda", "--emulate", *flags], declared)
    return resolve(gather(declared, line.given), plugins), plugins


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Heads of 64 features, the smallest that there are kernels for."""
    return str(
        tiny("llama", tmp_path_factory.mktemp("llama"), head_dim=64, num_attention_heads=2, intermediate_size=128)
    )


@pytest.mark.row("F-369")
@pytest.mark.parametrize(
    ("asked", "packages", "chosen"),
    [
        ("FLASHINFER", EVERYTHING, "flashinfer"),
        ("FLASH_ATTN", EVERYTHING, "flash-attn-3"),
        ("FLASH_ATTN", {"flash-attn": "2.8.4"}, "flash-attn"),
        ("TRITON_ATTN", {}, "triton-paged"),
        ("flashinfer", EVERYTHING, "flashinfer"),
    ],
)
def test_names_of_other_servers_choose_them(
    asked: str, packages: dict[str, str], chosen: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "installed", packages.get)
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", asked)
    config, _ = resolved(checkpoint, "--dtype=float16")
    assert (config.attention, config.attention_next) == (chosen, ())
    reasons = [reason.why for reason in config.reasons if reason.name == "attention"]
    assert reasons == ([f"{asked} is another name for it"] if asked != chosen else [])


def test_one_that_is_not_there_is_refused_by_name(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed", {}.get)
    with pytest.raises(ConfigError, match="attention backend flashinfer lacks the package flashinfer-python"):
        resolved(checkpoint, "--attention-backend=FLASHINFER", "--dtype=float16")


def test_a_gpu_takes_what_is_installed_in_this_order(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says what speaks against those before it."""
    monkeypatch.setattr("lsv_cuda.emulation.EmulatedCudaPlatform.attention", CudaPlatform.attention)
    monkeypatch.setattr(libraries, "installed", {"flashinfer-python": "0.6.18", "flashinfer-jit-cache": "1"}.get)
    config, _ = resolved(checkpoint, "--dtype=float16")
    assert config.attention == "flashinfer"
    assert config.attention_next[-1] == "torch-paged"
    (why,) = (reason.why for reason in config.reasons if reason.name == "attention")
    assert "but for flash-attn-3, which lacks the package flash-attn-3" in why
    wide, _ = resolved(checkpoint, "--dtype=float32")
    assert wide.attention not in libraries.LIBRARIES
    (why,) = (reason.why for reason in wide.reasons if reason.name == "attention")
    assert "flashinfer, which computes in bfloat16, float16, not in float32" in why


def test_a_layer_that_it_has_no_kernels_for_goes_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = str(tiny("llama", tmp_path / "narrow", head_dim=32, num_attention_heads=2))
    monkeypatch.setattr("lsv_cuda.emulation.EmulatedCudaPlatform.attention", ("flashinfer-emulated", "torch-paged"))
    config, plugins = resolved(narrow, "--dtype=float16", "--cuda-emulated-kernels=flashinfer")
    assert (config.attention, config.attention_next) == ("flashinfer-emulated", ("torch-paged",))
    attention, *_ = bound_ops(config, plugins.catalog)
    assert attention.implementation == "lsv_triton.attention.torch_backend:TorchAttention"
    assert "flashinfer-emulated can't serve layer 0" in attention.why
    assert "head size 32 is not one of 64, 128, 256" in attention.why


PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, detokenize=False)
PROMPTS = (1, 63, 64, 65, 130)
PLAIN = {"max_num_seqs": 1, "enforce_eager": True, "enable_prefix_caching": False, "async_scheduling": False}
FAST = {"max_num_seqs": 4, "enforce_eager": False, "max_num_batched_tokens": 64, "cuda.graph_rows": 4}


def answers(checkpoint: str, backend: str, **options: Any) -> list[tuple[int, ...]]:
    rng = random.Random(3)
    gc.collect()  # the cache of an engine before
    prompts = [[rng.randrange(5, 250) for _ in range(length)] for length in PROMPTS]
    vendor = {} if backend == "torch-paged" else {"cuda.emulated_kernels": backend.removesuffix("-emulated")}
    with LLM(
        checkpoint, emulate=True, dtype="float16", max_model_len=192, num_gpu_blocks_override=24,
        skip_tokenizer_init=True, attention_backend=backend, **{"platform": "cuda", **vendor, **options},
    ) as llm:  # fmt: skip
        return [answer.outputs[0].token_ids for answer in llm.generate(prompts, PARAMS, use_tqdm=False)]


@pytest.mark.parametrize(
    ("backend", "platform"),
    [("flashinfer", "cuda"), ("flash-attn-3", "cuda"), ("flash-attn", "cuda"), ("flash-attn", "rocm")],
)
def test_engines_give_the_same_tokens_in_graphs_and_batches(
    backend: str, platform: str, checkpoint: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one step after another does, op by op; every graph is taken, and has been compared with its step."""
    replays, plain_replay = Counter[str](), FakeGraph.replay

    def replay(graph: FakeGraph) -> None:
        replays[backend] += 1
        plain_replay(graph)

    monkeypatch.setattr(FakeGraph, "replay", replay)
    name = f"{backend}-emulated"
    plain = answers(checkpoint, name, platform=platform, **PLAIN)
    assert not replays
    assert answers(checkpoint, name, platform=platform, **FAST) == plain
    assert replays[backend] > len(PROMPTS)
    assert sum(libraries.obtain(libraries.EMULATED[backend][0]).calls.values()) > 0
    assert "no graphs" not in caplog.text
