"""How the layers of a transformers model are split over ranks: by the pattern that its configuration brings.

Source: ``base_model_tp_plan`` of transformers' configuration classes. Layers that are split by outputs are read by
layers that are split by inputs, whose sums run over the ranks; whatever the pattern says otherwise of a layer, or not
at all, is held whole by every rank, which is as right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from lsv_base.errors import ConfigError
from lsv_models.generic.body import find_body
from lsv_runtime.nn.linear import Row
from lsv_runtime.weights.place import Part, Weights

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


class Plan:
    """Which layers of a model are split, by their names. Raises ``ConfigError`` for a family without a pattern."""

    def __init__(self, lm: PreTrainedModel, ranks: int) -> None:
        config: Any = lm.config.get_text_config()
        self.prefix = f"{find_body(lm)}."
        self.styles: Mapping[str, str] = (getattr(config, "base_model_tp_plan", None) or {}) if ranks > 1 else {}
        self.heads = {
            "q_proj": config.num_attention_heads,
            "k_proj": getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        } if self.styles else {}  # fmt: skip
        if ranks > 1 and "rowwise" not in self.styles.values():
            raise ConfigError(
                f"transformers has no pattern by which {type(lm).__name__} is split over ranks: "
                "use tensor_parallel_size 1",
                param="tensor_parallel_size",
            )

    def style(self, path: str) -> str:
        """What the pattern says of a module or parameter; an empty string where it is held whole."""
        return self.styles.get(_NUMBER.sub(".*", path.removeprefix(self.prefix)), "")

    def part(self, w: Weights, path: str, outputs: int) -> Part:
        """The outputs of a layer on this rank."""
        name = path.rpartition(".")[2]
        if self.style(path) != "colwise":
            return Part(name, outputs, 0, outputs)
        heads = self.heads.get("k_proj" if name == "v_proj" else name)
        if heads is None or outputs % heads:
            return Part(name, outputs, *w.shard.split(outputs, "outputs"))
        split = w.shard.split if name == "q_proj" else w.shard.split_or_replicate
        start, stop = split(heads, "attention heads")
        return Part(name, outputs, start * outputs // heads, stop * outputs // heads)

    def linear(self, w: Weights, path: str, module: nn.Linear, role: Any) -> nn.Module:
        """The share of a linear layer that this rank has."""
        parent, _, name = path.rpartition(".")
        place, biased = Weights(w.declaration, parent), module.bias is not None
        if self.style(path) == "rowwise":
            reads = w.shard.split(module.in_features, "inputs")
            return Row(place, name, module.in_features, module.out_features, reads=reads, bias=biased)
        return place.linear(role, [self.part(w, path, module.out_features)], module.in_features, bias=biased)
