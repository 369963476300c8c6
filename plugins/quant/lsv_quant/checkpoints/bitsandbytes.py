"""bitsandbytes checkpoints: ``nf4`` and ``fp4`` in blocks of 64 weights, and ``LLM.int8()``. Activations are not
quantised.

LLM.int8() quantises activations as well, except outliers (W8A8); here all are treated as outliers, so its threshold
makes no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lsv_quant.checkpoints.scheme import Scheme
from lsv_quant.checkpoints.stored import CodedFormat, Held
from lsv_quant.online import online_coded
from lsv_quant.tables import BYTES, FP4, NF4
from lsv_runtime.weights.codebook import Codebook
from lsv_runtime.weights.quantizer import LinearLayer, Quantizer, StoredTensor, WithIgnored

BLOCK = 64
TABLES = {"nf4": NF4, "fp4": FP4}


def four_bit(kind: str) -> CodedFormat:
    """``weight`` and block scales as ``lsv_quant.checkpoints.bitsandbytes_source`` gives them."""
    scales = f"{kind}_scales"
    largest = max(TABLES[kind])  # stands for a block's largest weight

    def decode(stored: Mapping[str, torch.Tensor], layer: LinearLayer) -> Held:
        pairs = stored["weight"]  # the first of two in the high half
        return Held(pairs >> 4 | pairs << 4, stored[scales] / largest)

    packed = StoredTensor("weight", torch.uint8, output_axis=0, input_axis=1, per_input=2)
    blocks = StoredTensor(scales, torch.float32, output_axis=0, input_axis=1, per_input=BLOCK)
    return CodedFormat("bitsandbytes", Codebook(TABLES[kind], BLOCK), (packed, blocks), decode)


def eight_bit() -> CodedFormat:
    """``weight`` int8, where 127 is an output's ``SCB``."""

    def decode(stored: Mapping[str, torch.Tensor], layer: LinearLayer) -> Held:
        return Held(stored["weight"].view(torch.uint8).bitwise_xor_(128), stored["SCB"][:, None] / 127)

    weight = StoredTensor("weight", torch.int8, output_axis=0, input_axis=1)
    return CodedFormat(
        "bitsandbytes", Codebook(BYTES), (weight, StoredTensor("SCB", torch.float32, output_axis=0)), decode
    )


def make(quantization_config: Mapping[str, Any]) -> Quantizer:
    """The quantizer that makes nf4 from a plain checkpoint."""
    if not quantization_config:
        return online_coded.make_bitsandbytes({})
    scheme = Scheme(quantization_config)
    scheme.choose("quant_method", ("bitsandbytes",))
    four = scheme.choose("load_in_4bit", (False, True), False)
    if scheme.choose("load_in_8bit", (False, True), False) == four:
        raise scheme.error("one of load_in_4bit and load_in_8bit must be true")
    kind = scheme.choose("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
    scheme.choose("bnb_4bit_quant_storage", ("uint8",), "uint8")
    scheme.choose("llm_int8_has_fp16_weight", (False,), False)
    skipped = scheme.names("llm_int8_skip_modules")
    # what its own library computes in, where it computes, and what the tensors themselves say
    scheme.pass_over(
        "_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "bnb_4bit_use_double_quant",
        "llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload",
    )  # fmt: skip
    scheme.finish()
    if quantization_config.get("llm_int8_skip_modules") is None:
        skipped = ("lm_head",)
    return WithIgnored(four_bit(kind) if four else eight_bit(), skipped)
