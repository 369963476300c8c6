"""Layers of hybrids: something that mixes tokens, recurrent or attention, and then an MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_models.recurrent.keys import ignore, read_limits
from lsv_models.recurrent.mamba2_mixer import Mamba2Sizes
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

MakeNorm = Callable[[Weights, int, float], nn.Module]


BEFORE = {"before_mixer": "input_layernorm", "before_mlp": "post_attention_layernorm"}
"""The norms of Llama's block."""
AFTER = {"after_mixer": "post_attention_layernorm", "after_mlp": "post_feedforward_layernorm"}
"""Those of OLMo's, which normalises what is added."""


class HybridLayer(nn.Module):
    """``x + mixer(norm(x))`` and then ``x + mlp(norm(x))``: x [T, hidden] -> [T, hidden].

    ``norms`` are those that there are before and after mixer and MLP, and their names. ``scale`` multiplies what is
    added.
    """

    def __init__(
        self, w: Weights, c: DecoderConfig, mixer: nn.Module, mlp: nn.Module, *,
        norm: MakeNorm = RMSNorm, norms: Mapping[str, str] = BEFORE, scale: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.mixer, self.mlp, self.scale = mixer, mlp, scale
        self.norms = nn.ModuleDict({place: norm(w / name, c.hidden_size, c.norm_eps) for place, name in norms.items()})

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        mixed = self.mixer(self._normed("before_mixer", x), step)
        x = x + self._scaled(self._normed("after_mixer", mixed))
        return x + self._scaled(self._normed("after_mlp", self.mlp(self._normed("before_mlp", x))))

    def _normed(self, place: str, x: torch.Tensor) -> torch.Tensor:
        return self.norms[place](x) if place in self.norms else x  # type: ignore[no-any-return]

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.scale == 1.0 else x * self.scale


def with_defaults(config: Mapping[str, Any], **defaults: Any) -> Mapping[str, Any]:
    """config.json with the family's own values for keys that it leaves out; rope's inside its parameters count."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    return {**{name: value for name, value in defaults.items() if name not in rope}, **config}


def read_kinds(
    config: Mapping[str, Any], names: Sequence[str], layers: int, known: Mapping[str, str]
) -> list[str] | None:
    """The kind of each layer by the first of ``names`` that config.json has, in our words; None where it has none.

    Raises ``CheckpointError`` for other kinds and another number of layers.
    """
    given = next((config[name] for name in names if config.get(name) is not None), None)
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != layers or not all(kind in known for kind in given):
        raise CheckpointError(
            f"config.json: {' or '.join(names)} must list {layers} layers of {', '.join(known)}, got {given!r:.200}"
        )
    return [known[kind] for kind in given]


def read_mamba2(keys: Keys, hidden: int, eps: float, activation: str, *, inner: int | None = None) -> Mamba2Sizes:
    """The recurrent layers of a config whose keys begin with ``mamba_``."""
    inner = keys.count("mamba_expand", 2) * hidden if inner is None else inner
    heads = keys.count("mamba_n_heads", 128)
    dim = inner // heads if keys.json.get("mamba_d_head") in (None, "auto") else keys.count("mamba_d_head")
    if heads * dim != inner:
        raise CheckpointError(f"config.json: mamba_n_heads={heads} of {dim} do not make {inner} features")
    groups = keys.count("mamba_n_groups", 1)
    ignore(
        keys,
        "mamba_d_head",
        "mamba_expand",
        "mamba_chunk_size",
        "mamba_use_mlp",
        "num_logits_to_keep",
        "z_loss_coefficient",
    )
    return Mamba2Sizes(
        hidden=hidden,
        heads=heads,
        head_dim=dim,
        state=keys.count("mamba_d_state", 256),
        groups=groups,
        conv=keys.count("mamba_d_conv", 4),
        limits=read_limits(keys),
        activation=activation,
        bias=keys.take("mamba_proj_bias", bool, False),
        conv_bias=keys.take("mamba_conv_bias", bool, True),
        eps=eps,
        norm_groups=groups,
    )
