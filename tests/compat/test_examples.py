"""The offline examples in vLLM's sources run as they stand, on tiny checkpoints under the names that they ask for.

Left out are examples of what lsv refuses by name (AQLM, DeepSpeedFP, Neuron, TPU, Tensorizer, layer-wise profiles), and
those that fetch pictures from addresses of their own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from lsv_testing.tiny import tiny
from suite.caches import own_cache
from suite.libraries import LIBRARIES

from .conftest import SECONDS, Run
from .hub import fill

pytestmark = [
    pytest.mark.skipif(LIBRARIES is None, reason="needs make test-libraries"),
    pytest.mark.timeout(SECONDS + 300),
]


class Example(NamedTuple):
    """A program, the repositories that it loads, and a pattern of what it prints."""

    name: str
    repositories: tuple[str, ...]
    printed: str
    arguments: tuple[str, ...] = ()


OPT = "facebook/opt-125m"
FOUR_ANSWERS = r"(Prompt: '[^\n]+, Generated text: [^\n]+\n?){4}"
EXAMPLES = (
    Example("offline_inference", (OPT,), FOUR_ANSWERS),
    Example("llm_engine_example", (OPT,), r"(RequestOutput\([^\n]*finished=True[^\n]*\n){3}", ("--model", OPT)),
    Example(
        "lora_with_quantization_inference",
        (
            "huggyllama/llama-7b", "timdettmers/qlora-flan-7b", "TheBloke/TinyLlama-1.1B-Chat-v0.3-AWQ",
            "TheBloke/TinyLlama-1.1B-Chat-v0.3-GPTQ", "jashing/tinyllama-colorist-lora",
        ),
        r"(?s)(Running: \w+(.*?Prompt: .*?Output: .+?){4}){3}",
    ),
    Example(
        "multilora_inference",
        ("meta-llama/Llama-2-7b-hf", "yard1/llama-2-7b-sql-lora-test"),
        r"(?s)(RequestOutput\(.*?finished=True.*?){4}",
    ),
    Example(
        "offline_inference_encoder_decoder",
        ("facebook/bart-large-cnn",),
        r"(?s)(Encoder prompt: .*?Decoder prompt: .*?Generated text: '.+?){8}",
    ),
    Example("cpu_offload", ("meta-llama/Llama-2-13b-chat-hf",), FOUR_ANSWERS),
    Example(
        "gguf_inference",
        ("TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", "TinyLlama/TinyLlama-1.1B-Chat-v1.0"),
        r"(Prompt: ['\"]<\|system\|>[^\n]+, Generated text: [^\n]+\n?){2}",
    ),
    Example("offline_inference_chat", ("meta-llama/Meta-Llama-3-8B-Instruct",), r"(Prompt: [^\n]+text: '[^\n]+\n){10}"),
    Example("offline_inference_classification", ("jason9693/Qwen2.5-1.5B-apeach",), r"(Prompt: .+\(size=3\)\n){4}"),
    Example(
        "offline_inference_cli",
        (OPT,),
        r"(Prompt: '[^\n]+, Generated text: [^\n]+\n?){5}",
        ("--model", OPT, "--num-prompts", "5"),
    ),
    Example("offline_inference_embedding", ("intfloat/e5-mistral-7b-instruct",), r"(Prompt: .+\(size=64\)\n){4}"),
    Example("offline_inference_scoring", ("BAAI/bge-reranker-v2-m3",), r"(Pair: .+ \| Score: [\d.e-]+\n){2}"),
    Example(
        "offline_inference_structured_outputs",
        ("Qwen/Qwen2.5-3B-Instruct",),
        r"(Positive|Negative)\n\w+\n\{.+\nSELECT \w+ FROM \w+",
    ),
    Example(
        "offline_inference_mlpspeculator",
        ("meta-llama/Llama-2-13b-chat-hf", "ibm-fms/llama-13b-accelerator"),
        r"Without speculation\n[\d.]+\n(text: '.+')\nWith speculation\n[\d.]+\n\1",
    ),
    Example("offline_inference_with_default_generation_config", ("Qwen/Qwen2.5-0.5B-Instruct",), FOUR_ANSWERS),
    Example("offline_inference_with_prefix", (OPT,), "Generated answers are the same: True"),
    Example("offline_inference_with_profiler", (OPT,), FOUR_ANSWERS),
    Example("offline_inference_vision_language", ("llava-hf/llava-1.5-7b-hf",), r"(.+\n){4}"),
)  # fmt: skip


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs_unchanged(example: Example, run: Run, tmp_path: Path) -> None:
    fill(tmp_path / "hub" / "hub", example.repositories)
    printed = run(place_of(example.name), *example.arguments, LSV_CACHE_ROOT=str(cache_with_picture(tmp_path)))
    assert re.search(example.printed, printed), printed[-3000:]
    if example.name == "offline_inference_with_profiler":
        assert list((tmp_path / "vllm_profile").glob("*.json.gz"))


def test_shards_are_saved_as_the_example_does(run: Run, tmp_path: Path) -> None:
    model = tiny("qwen2", tmp_path / "model", tokenizer=True)
    run(place_of("save_sharded_state"), "--model", model, "--output", tmp_path / "saved")
    names = {file.name for file in (tmp_path / "saved").iterdir()}
    assert {"model-rank-0-part-0.safetensors", "config.json", "tokenizer.json"} <= names


def cache_with_picture(folder: Path) -> Path:
    """A cache with the picture that examples ask for, and with the kernels that have been compiled already."""
    made = own_cache(folder / "cache")
    pictures = made / "lsv" / "assets" / "vision_model_images"
    pictures.mkdir(parents=True)
    Image.fromarray(np.full((40, 60, 3), 200, np.uint8)).save(pictures / "cherry_blossom.jpg")
    return made


def place_of(name: str) -> Path:
    assert LIBRARIES is not None
    (folder,) = LIBRARIES.glob("vllm-*/examples")
    return folder / f"{name}.py"
