"""Fuyu (Adept 2023): patches of an image go through one linear layer into the decoder, as tokens do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from lsv_models.gpt.persimmon import Persimmon
from lsv_runtime.nn.embed import Embed
from lsv_runtime.nn.encoder import check_placeholder
from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.linear import Column
from lsv_runtime.nn.model import Encoder
from lsv_runtime.weights.place import Weights

_TEXT: Mapping[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 36, "num_attention_heads": 64,
    "vocab_size": 262144, "max_position_embeddings": 16384,
}  # fmt: skip
"""What files of the language model leave out."""
_OWN = ("image_size", "patch_size", "num_channels", "image_token_id", "text_config")
"""Keys that are not the language model's."""


class Patches(Encoder):
    """Takes ``pixel_values`` [rows * columns, numbers of a patch], ``rows`` int64 [1] and ``newline`` int64 [1], the
    token behind each row of patches: [rows * (columns + 1), hidden].
    """

    parts = 1

    def __init__(self, w: Weights, numbers: int, width: int, tokens: Embed) -> None:
        super().__init__()
        self.width = width
        self.numbers = numbers
        self.linear = Column.even(w, ("vision_embed_tokens",), numbers, width, bias=True)
        # not as a module: it is the model's
        self.__dict__["read"] = tokens

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return inputs

    def advance(self, state: Mapping[str, torch.Tensor], part: int) -> torch.Tensor:
        read: Callable[[torch.Tensor, None], torch.Tensor] = self.__dict__["read"]
        patches = self.linear(state["pixel_values"].to(self.linear.linear.layer.dtype))
        lines = patches.view(int(state["rows"]), -1, self.width)
        newline = read(state["newline"], None).expand(len(lines), 1, -1)
        return torch.cat((lines, newline), dim=1).flatten(0, 1)

    def largest(self, most: int) -> Mapping[str, torch.Tensor]:
        one = torch.ones(1, dtype=torch.int64)
        return {"pixel_values": torch.zeros(max(1, most - 1), self.numbers), "rows": one, "newline": one}


class Fuyu(Persimmon):
    """Persimmon, with an image before its text."""

    # since version 4.52 of transformers, and before it
    prefixes = (
        ("model.language_model", "model"),
        ("model.vision_embed_tokens", "vision_embed_tokens"),
        ("language_model.model", "model"),
        ("language_model.lm_head", "lm_head"),
    )

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        keys = Keys(config)
        side, channels = keys.count("patch_size", 30), keys.count("num_channels", 3)
        token = keys.take("image_token_id", int, 71011)
        super().__init__(w, config, max_len)
        check_placeholder("image_token_id", token, self.vocab_size)
        self.encoder = Patches(w.replicated(), side * side * channels, self.tokens.size, self.tokens)

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        """That of ``text_config``; where there is none, as in the first files, it lies open among the other keys."""
        nested = keys.maybe("text_config", dict)
        own = {key: value for key, value in keys.json.items() if key not in _OWN} if nested is None else nested
        text = Keys({**_TEXT, **own})
        found = super().read(text)
        text.finish("the text_config of Fuyu")
        if nested is not None:
            keys.agree("tie_word_embeddings", found[0].tied)
        keys.skip(*_OWN, *own)  # of the model around, transformers reads nothing but its own
        return found
