"""ModernBERT (Warner et al. 2024): pre-norm, gated, rotated; most layers see a window on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.pooling.encoder import Attention, EncoderConfig, GatedMLP, TextEncoder, finish, head_of
from lsv_models.pooling.heads import Classifier, count_labels
from lsv_runtime.nn.embed import Embed
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import find_activation
from lsv_runtime.nn.rope import Rope, RopeConfig
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Weights

_THETAS = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}


_BESIDE = (
    "cls_token_id", "deterministic_flash_attn", "position_embedding_type", "reference_compile",
    "repad_logits_with_grad", "sliding_window", "sparse_prediction", "sparse_pred_ignore_index",
)  # fmt: skip
"""Of training, of other heads, of other programs' kernels, and said twice."""


class Norm(nn.Module):
    """Layer normalisation whose bias a checkpoint may lack."""

    def __init__(self, w: Weights, size: int, eps: float, *, bias: bool) -> None:
        super().__init__()
        self.weight = w.take("weight", (size,))
        self.bias = w.take("bias", (size,)) if bias else None
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class Embeddings(nn.Module):
    """Words alone, normed: ids int64 [T] -> [T, hidden]."""

    def __init__(self, w: Weights, c: EncoderConfig, norm: nn.Module) -> None:
        super().__init__()
        self.word, self.norm = Embed(w / "tok_embeddings", c.vocab_size, c.hidden_size), norm

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return self.norm(self.word(ids, step))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """``x + attn(norm(x))``, then ``x + mlp(norm(x))``; the embeddings are normed already."""

    def __init__(self, attn: Attention, mlp: GatedMLP, norms: tuple[nn.Module, nn.Module]) -> None:
        super().__init__()
        self.attn, self.mlp = attn, mlp
        self.attn_norm, self.mlp_norm = norms

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        x = x + self.attn(self.attn_norm(x), step)
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class ModernBert(TextEncoder):
    pairs = False
    names = (
        (r"^model\.", ""),
        (r"attn\.Wqkv", "attn.qkv"),
        (r"attn\.Wo", "attn.out"),
        (r"mlp\.Wi", "mlp.gate_up"),
        (r"mlp\.Wo", "mlp.down"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        w, keys = w.replicated(), Keys(config)
        eps, norm_bias = keys.take("norm_eps", float, 1e-5), keys.take("norm_bias", bool, False)
        c = EncoderConfig.read(keys, activation=keys.take("hidden_activation", str, "gelu"), norm_eps=eps)
        biases = [keys.take(name, bool, False) for name in ("attention_bias", "mlp_bias", "classifier_bias")]
        window = keys.count("local_attention", 128) // 2 + 1
        activate = find_activation(keys.take("classifier_activation", str, "gelu"))
        kinds, ropes = _read_kinds(keys, c.layers), _read_ropes(keys, c.head_dim)
        for name in _BESIDE:
            keys.maybe(name, object)
        finish(keys, "ModernBert")
        super().__init__(c)
        norm = _norms(c, norm_bias)
        self.ignores = (*self.ignores, r"^head\.") if not head_of(config) else self.ignores
        self.embed = Embeddings(w / "embeddings", c, norm(w / "embeddings" / "norm"))
        rotate = {kind: Rope(w, rope, max_len) for kind, rope in ropes.items() if kind in kinds}
        layers = []
        for i, kind in enumerate(kinds):
            at = w / "layers" / i
            attn = Attention(
                at / "attn", c, i, names=("qkv",), bias=biases[0], rope=rotate[kind],
                window=window if kind == "sliding_attention" else None,
            )  # fmt: skip
            mlp = GatedMLP(at / "mlp", c, names=("gate_up",), bias=(biases[1], biases[1]))
            layers.append(Layer(attn, mlp, (norm(at / "attn_norm") if i else nn.Identity(), norm(at / "mlp_norm"))))
        self.layers = nn.ModuleList(layers)
        self.norm = norm(w / "final_norm")
        if head_of(config):
            last = norm(w / "head" / "norm")
            self.scorer = Classifier(
                w, (c.hidden_size, count_labels(config)), dense="head.dense", bias=biases[2],
                between=nn.Sequential(Activation(activate), last),
            )  # fmt: skip


class Activation(nn.Module):
    """A function as a module."""

    def __init__(self, activate: Any) -> None:
        super().__init__()
        self.activate = activate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activate(x)  # type: ignore[no-any-return]


def _norms(c: EncoderConfig, bias: bool) -> Any:
    return lambda w: Norm(w, c.hidden_size, c.norm_eps, bias=bias)


def _read_kinds(keys: Keys, layers: int) -> Sequence[str]:
    """Whether each layer sees all or a window: as listed, or every third all."""
    every = keys.count("global_attn_every_n_layers", 3)
    kinds = keys.maybe("layer_types", list)
    if kinds is None:
        return ["full_attention" if i % every == 0 else "sliding_attention" for i in range(layers)]
    if len(kinds) != layers or not set(kinds) <= set(_THETAS):
        raise CheckpointError(f"config.json: layer_types must be {layers} of {', '.join(_THETAS)}, got {kinds!r:.100}")
    return kinds


def _read_ropes(keys: Keys, head_dim: int) -> Mapping[str, RopeConfig]:
    """The rotation of each kind of layer."""
    length = keys.count("max_position_embeddings", 8192)
    given = keys.maybe("rope_parameters", dict) or {}
    thetas = {"full_attention": keys.maybe("global_rope_theta", float),
              "sliding_attention": keys.maybe("local_rope_theta", float)}  # fmt: skip
    ropes = {}
    for kind, default in _THETAS.items():
        own = given.get(kind) or {}
        if own.get("rope_type", "default") != "default":
            raise CheckpointError(f"config.json: rope_parameters of {kind}: only the default rule is known")
        theta = float(own.get("rope_theta") or thetas[kind] or default)
        ropes[kind] = RopeConfig(
            kind="default", theta=theta, head_dim=head_dim, rotary_dim=head_dim, length=length, original_length=length,
            parameters={},
        )  # fmt: skip
    return ropes
