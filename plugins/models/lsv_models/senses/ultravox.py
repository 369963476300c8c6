"""Ultravox: Whisper's tower over each half minute of a sound, frames stacked and projected, a language model.

Source: the code that fixie-ai publishes its checkpoints with (ultravox_model.py), versions 0.3 to 0.6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from lsv_base.errors import CheckpointError
from lsv_models.llama import Llama
from lsv_models.mistral import Mistral
from lsv_models.qwen3 import Qwen3
from lsv_models.senses.languages import LEFT_OUT, make_language, under
from lsv_models.whisper import Tower, WhisperConfig
from lsv_runtime.nn.decoder import Decoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.mlp import GatedActivation, find_activation
from lsv_runtime.nn.model import Encoder, Model
from lsv_runtime.nn.norm import RMSNorm
from lsv_runtime.weights.naming import Prefixes
from lsv_runtime.weights.place import Part, Weights

_LANGUAGES: Mapping[str, type[Decoder]] = {"llama": Llama, "mistral": Mistral, "qwen3": Qwen3}
_EPS = 1e-6
_HEARING: Mapping[str, Any] = {
    "vocab_size": 51865, "d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
    "decoder_layers": 4, "decoder_attention_heads": 6, "decoder_ffn_dim": 1536,
}  # fmt: skip
"""What published files may leave out of ``audio_config``: the sizes of the smallest Whisper."""
# where parts are, what the processor reads, and what training used
_BESIDE = (
    "text_model_id", "audio_model_id", "audio_token_index", "ignore_index", "vocab_size", "norm_init",
    "llm_only_training",
)  # fmt: skip
_ADAPTERS = ("text_model_lora_config", "audio_model_lora_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """What stands between the tower and the language model."""

    stack: int
    """So many positions of the tower become one embedding."""
    inner: int
    activation: str
    norm_mid: bool
    """Whether the second norm comes before the second layer (from version 0.5 on), not behind it."""

    @classmethod
    def read(cls, keys: Keys) -> Between:
        found = cls(
            stack=keys.count("stack_factor", 8),
            inner=keys.count("hidden_size", 4096),
            activation=keys.take("projector_act", str, "swiglu"),
            norm_mid=keys.take("projector_ln_mid", bool, False),
        )
        if found.activation == "swiglu" and found.inner % 2:
            raise CheckpointError(f"config.json: hidden_size must be even for swiglu, got {found.inner}")
        return found


class Projector(nn.Module):
    """Stacked positions [count, stack * size] -> embeddings [count, outputs]."""

    def __init__(self, w: Weights, c: Between, size: int, outputs: int) -> None:
        super().__init__()
        inputs, gated = c.stack * size, c.activation == "swiglu"
        inner, half = c.inner // 2 if gated else c.inner, c.inner // 2
        # the second half is the gate
        spans = ((half, c.inner), (0, half)) if gated else ((0, c.inner),)
        self.before = RMSNorm(w / "ln_pre", inputs, _EPS)
        self.first = Column(w, [Part("linear_1", c.inner, *span) for span in spans], inputs)
        self.activate = GatedActivation("silu", w.dtype) if gated else find_activation(c.activation)
        self.between = RMSNorm(w / "ln_mid", inner, _EPS) if c.norm_mid else None
        self.second = Column.even(w, ("linear_2",), inner, outputs)
        self.behind = None if c.norm_mid else RMSNorm(w / "ln_post", outputs, _EPS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activate(self.first(self.before(x)))
        x = self.second(x if self.between is None else self.between(x))
        return x if self.behind is None else self.behind(x)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class HeardState:
    """A sound being encoded: each half minute [positions, size], and the positions at the end that are silence."""

    pieces: tuple[torch.Tensor, ...]
    silent: int


class UltravoxEncoder(Encoder):
    """Takes ``features`` [bins, frames], the log of a mel spectrogram of any length.

    Positions of half a minute see one another, and none of another one. What follows the first is padded with silence,
    of which is kept here what an embedding needs that is not full; what there is of the sound does not see it.
    """

    def __init__(self, w: Weights, hearing: WhisperConfig, between: Between, outputs: int) -> None:
        super().__init__()
        self.c, self.between, self.parts = hearing, between, hearing.tower_layers
        self.tower = Tower(w / "audio_tower", hearing)
        self.projector = Projector(w / "multi_modal_projector", between, hearing.hidden_size, outputs)

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> HeardState:
        *before, last = inputs["features"].split(2 * self.c.source, dim=1)
        heard = (last.shape[1] + 1) // 2
        if before:
            each = 2 * self.between.stack
            padded = min(-(-last.shape[1] // each) * each, 2 * self.c.source)
            last = functional.pad(last, (0, padded - last.shape[1]))
        pieces = tuple(self.tower.begin({"features": piece}) for piece in (*before, last))
        return HeardState(pieces, len(pieces[-1]) - heard)

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        pieces, rest = divmod(most, -(-self.c.source // self.between.stack))
        return {"features": torch.zeros(self.c.bins, 2 * (pieces * self.c.source + rest * self.between.stack))}

    def advance(self, state: HeardState, part: int) -> HeardState | torch.Tensor:
        layer, (*before, last) = self.tower.layers[part], state.pieces
        pieces = (*(layer(x, ((1, len(x)),)) for x in before), layer(last, ((1, len(last)),), state.silent))
        if part + 1 < self.parts:
            return HeardState(pieces, state.silent)
        return self.projector(torch.cat([self.stack(self.tower.norm(x)) for x in pieces]))  # type: ignore[no-any-return]

    def stack(self, x: torch.Tensor) -> torch.Tensor:
        """x [positions, size] -> [positions / stack, stack * size], the last one filled up with zeros."""
        stack = self.between.stack
        return functional.pad(x, (0, 0, 0, -len(x) % stack)).view(-1, stack * x.shape[1])


def _hearing_names() -> Prefixes:
    """The tower's, in the checkpoint itself and in one of all Whisper."""
    layer = "layers.*.self_attn"
    places = ("audio_tower.model.encoder", "audio_tower.encoder", "audio_tower")
    renamed = ((f"{place}.{layer}.out_proj", f"audio_tower.{layer}.o_proj") for place in places)
    return (*renamed, *((place, "audio_tower") for place in places[:2]))


@dataclass(frozen=True, slots=True)
class Ultravox:
    """All versions, with parts in the checkpoint or in others."""

    prefixes: ClassVar[Prefixes] = (
        *_hearing_names(),
        *(("language_model.model", "model"), ("language_model.lm_head", "lm_head")),
        *under("language_model", Llama.prefixes),
    )

    def __call__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> Model:
        keys = Keys(_filled(config))
        hearing = WhisperConfig.read({**_HEARING, **keys.take("audio_config", dict)})
        between = Between.read(keys)
        model = make_language(w, keys, "text_config", _LANGUAGES, max_len)
        for name in _ADAPTERS:
            adapter = keys.take(name, dict, {})
            if adapter.get("r"):
                raise CheckpointError(f"config.json: {name} asks for adapters that are not merged: merge them first")
        keys.agree("audio_latency_block_size", 0)
        keys.agree("num_projector_layers", 0)
        keys.skip(*_BESIDE)
        keys.finish("Ultravox")
        model.encoder = UltravoxEncoder(w.replicated(), hearing, between, model.norm.weight.shape[0])
        model.prefixes = self.prefixes
        model.ignores += (r"^audio_tower\.(model\.)?decoder\.", r"^audio_tower\.proj_out\.")
        return model


def _filled(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the sizes that ``text_config`` leaves out."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    return {**config, "text_config": {**LEFT_OUT.get(str(text.get("model_type")), {}), **text}}


ultravox = Ultravox()
