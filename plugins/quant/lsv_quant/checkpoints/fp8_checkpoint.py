"""Checkpoints in e4m3: ``fp8`` with a scale for a tensor, an output or a block (DeepSeek-V3, Qwen3-FP8, AutoFP8), and
``fbgemm_fp8`` with a scale for each output.

With ``activation_scheme`` dynamic, kernels may round activations to e4m3 by token (W8A8). With ``static`` every device
rounds them to e4m3 by the stored scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lsv_quant.checkpoints.forms import PlainHead, float8_format, unused_scale
from lsv_quant.checkpoints.scheme import Scheme
from lsv_quant.checkpoints.stored import Blocks
from lsv_runtime.weights.quantizer import Quantizer, WithIgnored


def make(quantization_config: Mapping[str, Any]) -> Quantizer:
    scheme = Scheme(quantization_config)
    scheme.choose("quant_method", ("fp8",))
    scheme.choose("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    dynamic = scheme.choose("activation_scheme", ("dynamic", "static"), "dynamic") == "dynamic"
    scheme.choose("scale_fmt", ("float", "ue8m0"), "float")  # in either case they are stored as numbers
    scheme.choose("expert_dtype", ("fp8",), "fp8")
    _expect_floats(scheme)
    block = scheme.counts("weight_block_size", 2)
    skipped = scheme.names("modules_to_not_convert") + scheme.names("ignored_layers")
    scheme.finish()
    # checkpoints that state a block size, even null, call the scales by other names
    inverse = "weight_block_size" in quantization_config
    weight, activation = ("weight_scale_inv", "activation_scale") if inverse else ("weight_scale", "input_scale")
    blocks = Blocks() if block is None else Blocks(*block)
    if dynamic:
        format = float8_format("fp8", blocks, unused_scale(activation), scale=weight, rounded=True)
    else:
        format = float8_format("fp8", blocks, scale=weight, input_scale=activation)
    return WithIgnored(PlainHead(format), skipped)


def _expect_floats(scheme: Scheme) -> None:
    """AutoRound's keys, which say what the format does anyway. Raises ``CheckpointError`` where they say another."""
    for key in ("bits", "act_bits"):
        scheme.choose(key, (8,), 8)
    for key in ("data_type", "act_data_type"):
        scheme.choose(key, ("fp", "fp8", "fp8_e4m3", "float", "float8_e4m3fn"), "fp")
    for key in ("sym", "act_sym"):
        scheme.choose(key, (True,), True)
    scheme.choose("group_size", (-1, 0), -1)
    scheme.pass_over("act_dynamic", "act_group_size")  # activation_scheme says it


def make_fbgemm(quantization_config: Mapping[str, Any]) -> Quantizer:
    """Kernels may round activations to e4m3 by token, where ``activation_scale_ub`` bounds a token's largest number."""
    scheme = Scheme(quantization_config)
    scheme.choose("quant_method", ("fbgemm_fp8",))
    skipped = scheme.names("modules_to_not_convert")
    bound = scheme.number("activation_scale_ub", math.inf)
    scheme.finish()
    repeated = unused_scale("input_scale_ub")  # in every layer, as the config has it
    format = float8_format("fbgemm_fp8", Blocks(), repeated, rounded=True, input_bound=bound)
    return WithIgnored(PlainHead(format), skipped)
