"""Gemma 1 to 3 and VaultGemma, text alone: scaled embeddings, norms by ``1 + weight``, soft caps, windows in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from lsv_models.llama import LlamaLayer
from lsv_models.rms.blocks import OffsetRMSNorm, SandwichLayer
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys

_DEFAULTS = {"head_dim": 256, "activation": "gelu_pytorch_tanh", "tied": True}
Caps = tuple[float | None, float | None]
"""The soft caps of attention and of logits where config.json does not name them; null takes them away."""
CAPS: Caps = (50.0, 30.0)


def read_scores(keys: Keys, c: DecoderConfig, caps: Caps = CAPS) -> DecoderConfig:
    """With the scale and the soft caps of Gemma 2."""
    return replace(
        c,
        attention_scale=keys.take("query_pre_attn_scalar", float, 256.0) ** -0.5,
        attention_cap=keys.maybe("attn_logit_softcapping", float, caps[0]),
        logit_cap=keys.maybe("final_logit_softcapping", float, caps[1]),
    )


class GemmaLayer(LlamaLayer):
    op = "layer.other"
    norm = OffsetRMSNorm


class Gemma(DenseDecoder):
    layer = GemmaLayer
    defaults = _DEFAULTS

    def read(self, keys: Keys) -> DecoderConfig:
        c = super().read(keys)
        # the first files have "gelu" for its approximation, which they were trained with
        legacy = "gelu_pytorch_tanh" if c.activation == "gelu" else c.activation
        activation = keys.maybe("hidden_activation", str) or legacy
        return replace(c, activation=activation, embedding_multiplier=c.hidden_size**0.5)


class Gemma2Layer(SandwichLayer):
    norm = OffsetRMSNorm


class Gemma2(Gemma):
    layer = Gemma2Layer
    caps: ClassVar[Caps] = CAPS
    defaults = {**_DEFAULTS, "full_every": 2}

    def read(self, keys: Keys) -> DecoderConfig:
        keys.agree("sliding_window_size", keys.json.get("sliding_window"))
        return read_scores(keys, super().read(keys), self.caps)


class VaultGemmaLayer(GemmaLayer):
    norms = {"before_attn": "input_layernorm", "before_mlp": "pre_feedforward_layernorm"}


class VaultGemma(Gemma2):
    layer = VaultGemmaLayer


class Gemma3Layer(Gemma2Layer):
    qk_norm = True


class Gemma3(Gemma2):
    layer = Gemma3Layer
    caps = (None, None)
    defaults = {**_DEFAULTS, "full_every": 6, "rope_theta": 1e6, "local_theta": 10000.0}
