"""Command-R and Command-R7B (Cohere 2024): one norm without a bias for attention and gated MLP side by side."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar

from lsv_base.errors import CheckpointError
from lsv_models.gpt.stablelm import GATED
from lsv_runtime.nn.gpt.attention import stacked_norms
from lsv_runtime.nn.gpt.config import GptConfig, read_rotary
from lsv_runtime.nn.gpt.form import Form
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.rope import PairRope

_OWN = {
    "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj", "rotary_pct": 1.0,
    "use_gated_activation": True, "use_parallel_block": True, "use_qk_norm": False,
}  # fmt: skip


class Cohere(Gpt):
    form = replace(GATED, residual="parallel", before_mlp=None, make_norm=partial(LayerNorm, bias=False))
    prefixes = form.prefixes
    rotation = PairRope
    theta: ClassVar[float] = 500000.0
    """Of a file that does not say."""

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        c = GptConfig.read(keys, activation="silu")
        bias = keys.take("attention_bias", bool, False)
        normed = keys.take("use_qk_norm", bool, False)
        form = replace(self.form, qkv_bias=bias, out_bias=bias, make_head_norm=stacked_norms if normed else None)
        scale, rope = keys.take("logit_scale", float, 0.0625), read_rotary(keys, c.head_dim, theta=self.theta)
        return replace(c, logit_scale=scale, rope=rope), form


class Cohere2(Cohere):
    """Most layers see a window, and the others have no positions."""

    theta = 10000.0

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        c, form = super().read(keys)
        for name in ("cache_implementation", "layer_switch", "use_embedding_sharing", "use_parallel_embedding"):
            keys.maybe(name, object)
        for name, own in _OWN.items():
            keys.agree(name, own)
        window, every = keys.count("sliding_window", 4096), keys.count("sliding_window_pattern", 4)
        kinds = keys.maybe("layer_types", list) or [
            "sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(c.layers)
        ]
        if len(kinds) != c.layers or not {*kinds} <= {"sliding_attention", "full_attention"}:
            raise CheckpointError(
                f"config.json: layer_types must say full_attention or sliding_attention for {c.layers} layers"
            )
        windows = tuple(window if kind == "sliding_attention" else None for kind in kinds)
        unrotated = frozenset(layer for layer, kind in enumerate(kinds) if kind == "full_attention")
        return replace(c, windows=windows, unrotated=unrotated), form
