"""Checkpoints in mxfp4, as gpt-oss has its experts: blocks of 32 codes of 4 bits, and a power of two for each.

Source: OCP Microscaling Formats 1.0; the layout is that of transformers' ``convert_moe_packed_tensors``: ``blocks``
uint8 [outputs, inputs / 32, 16], of two codes the first one in the lower bits; ``scales`` uint8 [outputs, inputs / 32],
exponents plus 127. Without a configuration weights are rounded while a plain checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lsv_quant.checkpoints.scheme import Scheme
from lsv_quant.checkpoints.stored import CodedFormat, Held
from lsv_quant.online.online_coded import make_mxfp4
from lsv_quant.tables import E2M1
from lsv_runtime.weights.codebook import Codebook
from lsv_runtime.weights.quantizer import LinearLayer, OfExperts, Quantizer, StoredTensor, WithIgnored

_GROUP = 32
_BLOCKS = StoredTensor("blocks", torch.uint8, output_axis=0, input_axis=1, per_input=_GROUP, sizes=(_GROUP // 2,))
_SCALES = StoredTensor("scales", torch.uint8, output_axis=0, input_axis=1, per_input=_GROUP)


def make(quantization_config: Mapping[str, Any]) -> Quantizer:
    if not quantization_config:
        return make_mxfp4({})
    scheme = Scheme(quantization_config)
    scheme.choose("quant_method", ("mxfp4",))
    skipped = scheme.names("modules_to_not_convert")
    scheme.pass_over("dequantize")
    scheme.finish()
    # names in the configuration are patterns of whole modules: model.layers.*.self_attn
    patterns = (f"re:{name.replace('.', r'[.]').replace('*', '[^.]+')}([.]|$)" for name in skipped)
    format = CodedFormat("mxfp4", Codebook(E2M1, _GROUP), (_BLOCKS, _SCALES), _decode)
    return WithIgnored(OfExperts(format), tuple(patterns))  # no other layer is stored so, whatever is left out


def _decode(stored: Mapping[str, torch.Tensor], layer: LinearLayer) -> Held:
    exponents = stored["scales"].int() - 127
    scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)
    return Held(stored["blocks"].flatten(1), scales)
