"""Exaone 3, Llama under names of its own, and Exaone 4: norms after, and windows where tokens have positions."""

from __future__ import annotations

from collections.abc import Sequence

from lsv_base.errors import CheckpointError
from lsv_models.llama import LlamaLayer
from lsv_models.rms.blocks import PostNormLayer
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import Rope
from lsv_runtime.weights.place import Weights


class Exaone3Layer(LlamaLayer):
    qkv_bias = out_bias = mlp_bias = False


class Exaone3(DenseDecoder):
    layer = Exaone3Layer
    keys = {
        "num_hidden_layers": "num_layers",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    }
    defaults = {"norm_eps": 1e-5}
    prefixes = (
        ("transformer.h.*.ln_1", "model.layers.*.input_layernorm"),
        ("transformer.h.*.ln_2", "model.layers.*.post_attention_layernorm"),
        ("transformer.h.*.attn.attention.out_proj", "model.layers.*.self_attn.o_proj"),
        ("transformer.h.*.attn.attention", "model.layers.*.self_attn"),
        ("transformer.h.*.mlp.c_fc_0", "model.layers.*.mlp.gate_proj"),
        ("transformer.h.*.mlp.c_fc_1", "model.layers.*.mlp.up_proj"),
        ("transformer.h.*.mlp.c_proj", "model.layers.*.mlp.down_proj"),
        ("transformer.wte", "model.embed_tokens"),
        ("transformer.ln_f", "model.norm"),
    )


class Exaone4Layer(PostNormLayer):
    qk_norm = True
    qkv_bias = out_bias = mlp_bias = False


class Exaone4(DenseDecoder):
    layer = Exaone4Layer
    defaults = {"norm_eps": 1e-5, "full_every": 4}

    def read(self, keys: Keys) -> DecoderConfig:
        self.hybrid = keys.json.get("sliding_window") is not None
        if not self.hybrid and keys.json.get("sliding_window_pattern"):
            raise CheckpointError(
                "config.json: layers without a window have no positions, so sliding_window can't be taken away "
                "(--disable-sliding-window)"
            )
        return super().read(keys)

    def make_ropes(self, w: Weights, c: DecoderConfig, max_len: int) -> Sequence[Rope | None]:
        """Where there are windows, layers without one have no positions."""
        ropes = super().make_ropes(w, c, max_len)
        if not self.hybrid:
            return ropes
        return [rope if window else None for rope, window in zip(ropes, c.windows, strict=True)]
