"""AWQ checkpoints as AutoAWQ writes them in its version "gemm" (Lin et al. 2023; awq/modules/linear/gemm.py).

qweight int32 [inputs, outputs / 8], qzeros int32 [groups, outputs / 8], scales [groups, outputs]. From the low end, the
eight codes of a word belong to outputs 0, 2, 4, 6, 1, 3, 5 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lsv_base.untrusted.patterns import Pattern
from lsv_quant.checkpoints.packed import (
    PackedWeights,
    Packing,
    by_layer,
    dynamic_pattern,
    expect_plain_activations,
    group_size,
    layer_names,
)
from lsv_quant.checkpoints.scheme import Scheme
from lsv_runtime.weights.codebook import from_nibbles
from lsv_runtime.weights.quantizer import Role, StoredTensor, WithIgnored

_OUTPUTS = (0, 2, 4, 6, 1, 3, 5, 7)
_LOW_HALVES = 0x0F0F0F0F
_CHUNK = 256
"""Words of a row unpacked at a time."""


@dataclass(frozen=True, slots=True)
class AwqPacking(Packing):
    """Words that hold the codes of eight outputs."""

    def words(self) -> StoredTensor:
        return StoredTensor("qweight", torch.int32, output_axis=1, input_axis=0, per_output=self.per_word)

    def unpack(self, words: torch.Tensor) -> torch.Tensor:
        inputs, count = words.shape
        codes = words.new_empty((count, 8, inputs // 2), dtype=torch.uint8)
        for first in range(0, count, _CHUNK):
            rows = words[:, first : first + _CHUNK].T.contiguous()
            even, odd = rows[:, ::2], rows[:, 1::2]
            low = even & _LOW_HALVES | (odd & _LOW_HALVES) << 4
            high = even >> 4 & _LOW_HALVES | odd & ~_LOW_HALVES
            for place, output in enumerate(_OUTPUTS):
                pairs = (high if place % 2 else low).view(torch.uint8)
                codes[first : first + _CHUNK, output].copy_(pairs[:, place // 2 :: 4])
        return codes.flatten(0, 1)

    def unpack_zeros(self, words: torch.Tensor) -> torch.Tensor:
        places = from_nibbles(words.view(torch.uint8)).unflatten(-1, (-1, 8))
        zeros = torch.empty_like(places)
        zeros[..., list(_OUTPUTS)] = places
        return zeros.flatten(-2)


def make(quantization_config: Mapping[str, Any]) -> WithIgnored:
    """The quantizer of a checkpoint. Raises ``CheckpointError`` for a config that can't be honoured."""
    scheme = Scheme(quantization_config)
    scheme.choose("quant_method", ("awq",))
    for key in ("version", "format", "checkpoint_format"):
        scheme.choose(key, ("gemm", "GEMM"), "gemm")
    scheme.choose("backend", ("auto", "autoawq", "auto_awq", "gptqmodel"), "auto")
    scheme.choose("pack_dtype", ("int32",), "int32")
    scheme.choose("desc_act", (False,), False)
    expect_plain_activations(scheme)
    once = group_size(scheme, "q_group_size") if "q_group_size" in scheme.json else None
    packing = AwqPacking(
        bits=scheme.choose("bits", (4,), scheme.choose("w_bit", (4,), 4)),
        group=group_size(scheme, "group_size", once),
        symmetric=not scheme.choose("zero_point", (True, False), True),
    )
    head = scheme.choose("lm_head", (True, False), False)
    skipped = layer_names(scheme, "modules_to_not_convert")
    overrides = [_override(packing, *entry) for entry in by_layer(scheme, "dynamic")]
    scheme.pass_over("modules_in_block_to_quantize", "sym")  # transformers writes the one for every method
    scheme.finish()

    def packings(names: Sequence[str], role: Role) -> AwqPacking | None:
        if role == "head" and not head:
            return None
        return next((meant for pattern, meant in overrides if any(map(pattern.match, names))), packing)

    return WithIgnored(PackedWeights("awq", packings), skipped)


def _override(packing: AwqPacking, key: str, changes: Scheme) -> tuple[Pattern, AwqPacking | None]:
    """An entry of GPTQModel's ``dynamic``: ``-:`` and a pattern for layers left plain, else a pattern for layers packed
    differently.
    """
    pattern = dynamic_pattern(key, changes)
    if key.startswith("-:"):
        return pattern, None
    changes.choose("bits", (packing.bits,), packing.bits)
    group = group_size(changes, "group_size", packing.group)
    symmetric = changes.choose("sym", (True, False), packing.symmetric)
    symmetric = not changes.choose("zero_point", (True, False), not symmetric)
    changes.finish()
    return pattern, replace(packing, group=group, symmetric=symmetric)
