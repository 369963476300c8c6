"""Medusa heads: each drafts the token of its own place from one and the same state, whatever the others draft.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (2024). Of what the heads
say the likeliest path is verified, no tree. Two formats are known: that of vLLM (``blocks.N.layers.L``, ``lm_heads.N``,
``token_map``), and that of the paper's authors (``N.L.linear`` and ``N.L``, in ``medusa_lm_head.pt``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_drafters.checkpoint import Tensors, number
from lsv_drafters.heads import Heads, HeadsDrafter
from lsv_runtime.drafts.speculator import Choose, move_on
from lsv_runtime.nn.sampling import Choices
from lsv_runtime.weights.checkpoint import CheckpointSource
from lsv_runtime.weights.quantizer import PlainLinear


class MedusaHeads(Heads):
    """The residual blocks of all places, and a matrix for each, or one for all."""

    def __init__(
        self, config: Mapping[str, Any], source: CheckpointSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Raises ``CheckpointError`` for a checkpoint that lacks what its config.json promises."""
        super().__init__()
        tensors = Tensors(source, dtype, device, "medusa_heads.", "medusa_head.")
        self.places = number(config, "num_heads", "medusa_num_heads")
        layers = number(config, "num_hidden_layers", "medusa_num_layers")
        block, head = ("blocks.{}.layers.{}", "lm_heads.{}")
        if "blocks.0.layers.0.weight" not in tensors:
            block, head = ("{}.{}.linear", f"{{}}.{layers}")
        shared = bool(config.get("original_lm_head", False))
        first = "lm_head" if shared and "lm_head.weight" in tensors else head.format(0)
        self.width = tensors.rows(f"{block.format(0, 0)}.weight")
        known = tensors.rows(f"{first}.weight")
        self.vocabulary = number(config, "vocab_size") if "vocab_size" in config else known
        self._dtype, self._scale = dtype, float(config.get("logit_scale", 1.0))
        self._map = _read_map(config, tensors, self.vocabulary)
        self._map = None if self._map is None else self._map.to(device)

        def read_head(place: int) -> PlainLinear:
            name = first if shared else head.format(place)
            rows = tensors.rows(f"{name}.weight")  # all tokens, or those alone that the heads know
            if self._map is not None and rows == len(self._map):
                return tensors.linear(name, rows, self.width)
            return tensors.linear(name, self.vocabulary, self.width, self._map)

        def read_blocks(place: int) -> nn.ModuleList:
            names = (block.format(place, layer) for layer in range(layers))
            return nn.ModuleList(tensors.linear(name, self.width, self.width) for name in names)

        self._blocks = nn.ModuleList(read_blocks(place) for place in range(self.places))
        self._heads = nn.ModuleList(read_head(place) for place in range(self.places))

    def draft(self, states: Tensor, tokens: Tensor, counts: Sequence[int], choices: Choices, choose: Choose) -> Tensor:
        states = states.to(self._dtype)
        return torch.cat(
            [
                choose(self.logits(states[:count], place), move_on(choices[:count], place))
                for place, count in enumerate(counts)
            ]
        )

    def logits(self, states: Tensor, place: int) -> Tensor:
        """[rows, vocabulary]."""
        for layer in self._blocks[place]:
            states = states + functional.silu(layer(states))
        logits = self._heads[place](states) * self._scale
        if self._map is None:
            return logits
        least = torch.finfo(logits.dtype).min  # of tokens that the heads do not know; infinite logits count as broken
        return logits.new_full((len(logits), self.vocabulary), least).index_copy_(1, self._map, logits)


class MedusaDrafter(HeadsDrafter):
    def make(
        self, config: Mapping[str, Any], source: CheckpointSource, dtype: torch.dtype, device: torch.device
    ) -> MedusaHeads:
        return MedusaHeads(config, source, dtype, device)


def _read_map(config: Mapping[str, Any], tensors: Tensors, vocabulary: int) -> Tensor | None:
    """int64: the ids of the tokens that the heads know; None where they know all."""
    known = config.get("truncated_vocab_size")
    if known is None or known == vocabulary:
        return None
    ids = tensors.read_plain("token_map", (number(config, "truncated_vocab_size"),)).long().clone()
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary or len(ids.unique()) < len(ids):
        raise CheckpointError(f"the heads' token_map must name different tokens from 0 to {vocabulary - 1}")
    return ids
