"""BART (Lewis et al. 2019) and the models that share its layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import repeat
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from lsv_base.errors import CheckpointError, ConfigError
from lsv_models.seq2seq.layers import DecoderLayer, EncoderLayer, Form, Side
from lsv_models.seq2seq.positions import Sinusoids
from lsv_models.seq2seq.tower import TextTower
from lsv_runtime.nn.embed import Embed, Head, Positions
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.model import AttentionModel
from lsv_runtime.nn.norm import LayerNorm
from lsv_runtime.nn.step import Step
from lsv_runtime.weights.place import Piece, Weights

_EPS = 1e-5
_BESIDE = (
    "_remove_final_layer_norm", "activation_dropout", "add_bias_logits", "add_final_layer_norm", "decoder_layerdrop",
    "do_blenderbot_90_layernorm", "dropout", "encoder_layerdrop", "extra_layer_norm", "extra_pos_embeddings",
    "force_bos_token_to_be_generated", "gradient_checkpointing", "hidden_size", "init_std", "initializer_range",
    "layernorm_variant", "normalize_before", "normalize_embedding", "num_attention_heads", "num_hidden_layers",
    "save_step", "static_position_embeddings",
)  # fmt: skip
"""Keys of training, of other heads, and of the first versions, whose classes have been split by family since."""
_SHARED = re.compile(r"(model\.(encoder|decoder)\.embed_tokens|lm_head)\.weight")
"""Other names of the embedding that encoder, decoder and head share."""
Rows = Literal["learned", "sinusoids", "fairseq"]


class BiasedHead(nn.Module):
    """A head whose logits get a bias, where the checkpoint has one."""

    def __init__(self, head: Head, w: Weights) -> None:
        super().__init__()
        shape, size = (1, head.vocab_size), slice(0, head.vocab_size)
        piece = Piece((w / "final_logits_bias").name, shape, (slice(0, 1), size), (slice(0, 1), size))
        self.head = head
        self.bias = w.declare(shape, (piece,), optional=True)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        logits: torch.Tensor = self.head(x, step)
        return logits if self.bias.is_meta else logits + self.bias


class Bart(AttentionModel):
    """A family of the line says in its class attributes where it differs."""

    staged = True
    form: Form = Form()
    rows: ClassVar[Rows] = "learned"
    offset: ClassVar[int] = 2
    """Rows of the positions' table before the one of position 0."""
    embed_norm: ClassVar[Literal["sum", "tokens"] | None] = "sum"
    """Whether words and positions are normed together; with ``"tokens"`` the decoder norms its words alone."""
    last_norm: ClassVar[bool] = False
    scaled: ClassVar[bool] = False
    """What ``scale_embedding`` is where it is not said."""
    activation: ClassVar[str] = "gelu"
    positions: ClassVar[int] = 1024
    """What ``max_position_embeddings`` is where it is not said."""
    logits_bias: ClassVar[bool] = True
    before: int = 0
    """Rows that ``read_text`` puts before those of the text."""
    shared: bool = True
    """Whether encoder, decoder and head share an embedding; otherwise each side has a vocabulary of its own."""
    ignores: tuple[str, ...] = (r"\.version$", r"embed_positions\._float_tensor$", r"embed_positions\.weights$")

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        super().__init__()
        keys = Keys(config)
        encoder, decoder = self._read_side(keys, "encoder"), self._read_side(keys, "decoder")
        source, target = self.read_positions(keys)
        self.vocab_size, source_vocab = self.read_vocabularies(keys)
        size = decoder.hidden_size
        self.scale = size**0.5 if keys.take("scale_embedding", bool, self.scaled) else 1.0
        self.read_more(keys)
        keys.finish(type(self).__name__)
        if max_len > target:
            raise ConfigError(
                f"max_model_len={max_len} is more than the {target} positions the model has", param="max_model_len"
            )
        place = w / "model"
        if self.shared:
            self.tokens = self.source_tokens = Embed(place / "shared", self.vocab_size, size)
        else:
            self.tokens = Embed(place / "decoder" / "embed_tokens", self.vocab_size, size)
            self.source_tokens = Embed(place / "encoder" / "embed_tokens", source_vocab, size)
        self.places = self._make_places(place / "decoder", target, size)
        self.embed_normed = self._make_norm(
            place / "decoder" / "layernorm_embedding", size, self.embed_norm is not None
        )
        below = [place / "decoder" / "layers" / i for i in range(decoder.layers)]
        self.layers = nn.ModuleList(self.make_layer(at, decoder, i, source) for i, at in enumerate(below))
        self.norm = self._make_norm(place / "decoder" / "layer_norm", size, self.last_norm)
        head = self.make_head(w, size)
        self.head = BiasedHead(head, w) if self.logits_bias else head
        self._make_encoder(place / "encoder", encoder, source)

    def _make_encoder(self, w: Weights, c: Side, source: int) -> None:
        size = c.hidden_size
        self.source_places = self._make_places(w, source, size)
        self.source_norm = self._make_norm(w / "layernorm_embedding", size, self.embed_norm is not None)
        places = [w / "layers" / i for i in range(c.layers)]
        layers = [self.make_source_layer(place, c, i) for i, place in enumerate(places)]
        norm = LayerNorm(w / "layer_norm", size, _EPS) if self.last_norm else None
        self.encoder = TextTower(
            self.read_text, layers, norm, width=size, longest=source, biases=self.biases, before=self.before
        )

    def make_layer(self, w: Weights, c: Side, layer: int, source: int) -> DecoderLayer:
        """A layer of the decoder, for texts of at most ``source`` tokens."""
        return DecoderLayer(w, c, self.form, layer, source, mlp=self.make_experts(w, c, "decoder", layer))

    def make_source_layer(self, w: Weights, c: Side, layer: int) -> EncoderLayer:
        """A layer of the encoder."""
        return EncoderLayer(w, c, self.form, mlp=self.make_experts(w, c, "encoder", layer))

    def read_more(self, keys: Keys) -> None:
        """Keys of a family's own."""

    def read_positions(self, keys: Keys) -> tuple[int, int]:
        """How many tokens the encoder reads at most, and how many the decoder."""
        count = keys.count("max_position_embeddings", self.positions)
        return count, count

    def read_vocabularies(self, keys: Keys) -> tuple[int, int]:
        """The sizes of the decoder's and the encoder's."""
        keys.agree("tie_word_embeddings", True)
        size = keys.count("vocab_size")
        return size, size

    def make_head(self, w: Weights, size: int) -> Head:
        return Head(w / "lm_head", self.vocab_size, size, tied=self.tokens)

    def make_experts(self, w: Weights, c: Side, side: str, layer: int) -> nn.Module | None:
        """What takes the place of the feed-forward block in a sparse layer; None in the others."""
        return None

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        x, places = self.tokens(ids, step) * self.scale, self.places(step.positions[0])
        if self.embed_norm == "tokens":
            return self.embed_normed(x) + places  # type: ignore[no-any-return]
        return self.embed_normed(x + places)  # type: ignore[no-any-return]

    def read_text(self, ids: torch.Tensor) -> torch.Tensor:
        """What the encoder's first layer reads: ids int64 [T] -> [T, hidden]."""
        x = self.source_tokens(ids, None) * self.scale
        return self.source_norm(x + self.source_places(self.text_positions(ids)))  # type: ignore[no-any-return]

    def biases(self, length: int, device: torch.device) -> Iterable[torch.Tensor | None]:
        """What the encoder's layers add to the scores of so many tokens."""
        return repeat(None)

    def text_positions(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.arange(len(ids), device=ids.device)

    def rename(self, name: str) -> str:
        if name.startswith(("shared.", "encoder.", "decoder.")):
            name = f"model.{name}"  # a model without its head
        if self.shared and _SHARED.fullmatch(name):
            return "model.shared.weight"
        return name.replace(".out_proj.", ".o_proj.")

    def _read_side(self, keys: Keys, side: str) -> Side:
        for name in _BESIDE:
            keys.maybe(name, object)
        size, heads = keys.count("d_model"), keys.count(f"{side}_attention_heads")
        if size % heads:
            raise CheckpointError(f"config.json: d_model={size} is not a multiple of {heads} heads")
        return Side(
            layers=keys.layers(f"{side}_layers"),
            hidden_size=size,
            heads=heads,
            kv_heads=heads,
            head_dim=size // heads,
            intermediate_size=keys.count(f"{side}_ffn_dim"),
            norm_eps=_EPS,
            activation=keys.take("activation_function", str, self.activation),
        )

    def _make_places(self, w: Weights, count: int, size: int) -> nn.Module:
        if self.rows == "learned":
            return Positions(w / "embed_positions", count, size, count, offset=self.offset)
        return Sinusoids(w / "embed_positions", count, size, first=self.offset, whole=self.rows == "fairseq")

    def _make_norm(self, w: Weights, size: int, normed: bool) -> nn.Module:
        return LayerNorm(w, size, _EPS) if normed else nn.Identity()


class PLBart(Bart):
    """PLBART (Ahmad et al. 2021), of programs."""

    scaled = True


class Mvp(Bart):
    """MVP (Tang et al. 2022); its prompts of learned vectors are not here."""

    def read_more(self, keys: Keys) -> None:
        keys.skip("prompt_length", "prompt_mid_dim")
        keys.agree("use_prompt", False)
