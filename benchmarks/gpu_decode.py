"""How near a GPU gets to its limits: decoding one request against memory bandwidth, a long prompt against arithmetic.

    python benchmarks/gpu_decode.py [--platform cuda] [--shape 4096,11008,32,32,32000] [--prompt 4096] [--tokens 128]

The model has the shape of a 7B Llama and random weights, 13.5 GB in 16 bits. A decoding step reads every weight but the
embedding's once, and the KV cache; that is held against the bandwidth of a copy on the same device, of which what is
read and what is written both count. A prompt's products and causal attention are held against the best square product
of the same dtype. Without a device it says so and ends with 2.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lsv import LLM, SamplingParams, plugins
from lsv.offers import PlatformOffer
from lsv.plugins.catalog import Catalog
from lsv.resolve.hardware import explain_absence, load_platform
from lsv_doctor import measure

WARM_UP_TOKENS = 16
ROUNDS = 3
_GIGA, _TERA = 1e9, 1e12


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama without grouped queries; every weight and cached value has two bytes."""

    hidden: int
    inner: int
    heads: int
    layers: int
    vocabulary: int

    @property
    def products(self) -> int:
        """Weights that every token is multiplied with, but for the head's."""
        return self.layers * (4 * self.hidden**2 + 3 * self.hidden * self.inner)

    def decoding_bytes(self, context: float) -> float:
        """Read by a step of one request with so many tokens in its cache."""
        return 2 * (self.products + self.vocabulary * self.hidden + 2 * self.layers * self.hidden * context)

    def prompt_operations(self, tokens: int) -> float:
        """Of products and causal attention; the head sees the last token alone."""
        return 2 * self.products * tokens + 2 * self.layers * self.hidden * tokens**2

    def config(self, length: int, dtype: str) -> Mapping[str, object]:
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": self.hidden,
            "intermediate_size": self.inner, "num_attention_heads": self.heads, "num_key_value_heads": self.heads,
            "num_hidden_layers": self.layers, "vocab_size": self.vocabulary, "max_position_embeddings": length,
            "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": dtype,
        }  # fmt: skip


def main() -> int:
    options = read_options()
    catalog = plugins.load().catalog
    offer = catalog.find(PlatformOffer, options.platform)
    if not offer.probe():
        print(f"platform {options.platform} has no device here: {explain_absence(offer)}")
        return 2
    dtype, limits = measure_limits(options.platform, catalog)
    shape = Shape(*map(int, options.shape.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        length = options.prompt + WARM_UP_TOKENS + options.tokens
        Path(folder, "config.json").write_text(json.dumps(shape.config(length, dtype)), encoding="utf-8")
        with LLM(
            folder, skip_tokenizer_init=True, load_format="dummy", platform=options.platform, dtype=dtype,
            max_model_len=length, max_num_batched_tokens=options.prompt, max_num_seqs=1, enable_prefix_caching=False,
        ) as llm:  # fmt: skip
            found = measure_model(llm, shape, options.prompt, options.tokens)
    print(json.dumps({"shape": options.shape, "dtype": dtype, **limits, **found, **fractions(limits, found)}, indent=2))
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--platform", default="cuda")
    parser.add_argument("--shape", default="4096,11008,32,32,32000", help="hidden, inner, heads, layers, vocabulary")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the long prompt, all in one step")
    parser.add_argument("--tokens", type=int, default=128, help="tokens that are decoded")
    return parser.parse_args()


def measure_limits(platform: str, catalog: Catalog) -> tuple[str, dict[str, float]]:
    """The platform's first dtype, and what its first device attains."""
    opened = load_platform(platform, catalog)
    info = opened.devices()[0]
    dtype = opened.capabilities(info).dtypes[0]
    device = opened.open(info.index, {})
    metrics = (*measure.of_memory(device), *measure.of_arithmetic(device, (dtype,)))
    found = {name.replace(f"gemm_{dtype}", "gemm"): run() for name, run in metrics}
    device.close()
    return dtype, found


def measure_model(llm: LLM, shape: Shape, prompt: int, tokens: int) -> dict[str, float]:
    """Best of ``ROUNDS``. Decoding is the difference of two answers to one short prompt."""
    short = WARM_UP_TOKENS
    seconds_of_prompt = min(generate(llm, prompt, 1) for _ in range(ROUNDS))
    first = min(generate(llm, short, 1) for _ in range(ROUNDS))
    all_tokens = min(generate(llm, short, 1 + tokens) for _ in range(ROUNDS))
    step = (all_tokens - first) / tokens
    return {
        "decode_ms": step * 1e3,
        "decode_tokens_s": 1 / step,
        "decode_gb_s": shape.decoding_bytes(short + tokens / 2) / step / _GIGA,
        "prefill_ms": seconds_of_prompt * 1e3,
        "prefill_tokens_s": prompt / seconds_of_prompt,
        "prefill_tflop_s": shape.prompt_operations(prompt) / seconds_of_prompt / _TERA,
    }


def generate(llm: LLM, prompt: int, tokens: int, *, rows: int = 1, temperature: float = 0.0) -> float:
    """Seconds of as many requests as ``rows``, with prompts that differ."""
    params = SamplingParams(temperature=temperature, max_tokens=tokens, ignore_eos=True, detokenize=False)
    prompts = [
        {"prompt_token_ids": [(7919 * row + place) % 1000 + 3 for place in range(prompt)]} for row in range(rows)
    ]
    began = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - began


def fractions(limits: Mapping[str, float], found: Mapping[str, float]) -> dict[str, float]:
    return {
        "decode_of_copy": found["decode_gb_s"] / limits["copy_gb_s"],
        "prefill_of_gemm": found["prefill_tflop_s"] / limits["gemm_tflop_s"],
    }


if __name__ == "__main__":
    sys.exit(main())
