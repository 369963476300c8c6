"""What stands behind the hidden states of a language model that classifies or rewards: labels' scores, not tokens'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv.request.pooling import Pooler
from lsv_base.errors import CheckpointError
from lsv_runtime import products
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.model import Model
from lsv_runtime.weights.place import Part, Weights

_NO_STEP: Any = None  # heads take the step for adapters, which there are none of


class Score(nn.Module):
    """One linear layer, ``score``: x [R, hidden] -> [R, labels], as of ``…ForSequenceClassification``."""

    def __init__(self, w: Weights, size: int, labels: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = (w / "score").take("weight", (labels, size))
        self.bias = (w / "score").take("bias", (labels,)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return products.linear(x.to(self.weight.dtype), self.weight, self.bias)


class Reward(nn.Module):
    """Two linear layers with a ReLU between them, ``score.0`` and ``score.2``: x [R, hidden] -> [R, labels]."""

    def __init__(self, w: Weights, size: int, labels: int) -> None:
        super().__init__()
        w = (w / "score").replicated()
        self.inner = Column(w, [Part("0", size, 0, size)], size, bias=True)
        self.outer = Column(w, [Part("2", labels, 0, labels)], size, bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.inner.linear.layer.dtype)
        return self.outer(functional.relu(self.inner(x)))  # type: ignore[no-any-return]


class Contrast(nn.Module):
    """The logit of one token less that of another: x [R, hidden] -> [R, 1], as rerankers answer with yes and no."""

    def __init__(self, model: Model, tokens: tuple[int, int], dtype: torch.dtype) -> None:
        super().__init__()
        self._models = [model]  # no child: its weights are the model's
        self._tokens, self._dtype = tokens, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self._models[0].head(x.to(self._dtype), _NO_STEP).float()
        no, yes = (logits[:, token] for token in self._tokens)
        return (yes - no)[:, None]


def without_head(json: Mapping[str, Any], pooler: Pooler) -> Mapping[str, Any]:
    """config.json for a language model that is asked for no tokens: under the name of a model without a head."""
    name = str((json.get("architectures") or [""])[0])
    stem, causal, _ = name.partition("ForCausalLM")
    if pooler.task == "generate" or pooler.contrast is not None:
        return json
    if not causal:
        stem = name.partition("For")[0]
    return {**json, "architectures": [f"{stem}Model"]} if stem and "For" in name else json


def make_scorer(w: Weights, model: Model, json: Mapping[str, Any], pooler: Pooler) -> nn.Module | None:
    """The head of a language model that classifies; None for one that gives vectors or tokens.

    Raises ``CheckpointError`` where the model has none that is known.
    """
    if pooler.task in ("generate", "embed"):
        return None
    if pooler.contrast is not None:
        return Contrast(model, pooler.contrast, w.dtype)
    size = json.get("hidden_size")
    if not isinstance(size, int):
        raise CheckpointError("config.json: a classifier needs hidden_size", param="model")
    labels = max(1, len(pooler.labels))
    if pooler.task == "reward":
        return Reward(w, size, labels)
    return Score(w, size, labels, bias=pooler.task == "token_classify")
