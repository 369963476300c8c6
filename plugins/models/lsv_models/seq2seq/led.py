"""LED (Beltagy et al. 2020): BART with an encoder of long texts, whose tokens see those within a window.

No token attends to all others, as is the case in transformers where no ``global_attention_mask`` is given.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lsv_base.errors import CheckpointError
from lsv_models.seq2seq.bart import Bart
from lsv_models.seq2seq.distances import mask_beyond
from lsv_runtime.nn.keys import Keys
from lsv_runtime.weights.naming import substitute

_NAMES = (
    (r"^led\.", "model."),
    (r"\.longformer_self_attn\.([qkv])(?:uery|ey|alue)\.", r".\1_proj."),
    (r"\.self_attn\.output\.", ".self_attn.o_proj."),
)


class Led(Bart):
    offset = 0
    ignores = (*Bart.ignores, r"\.longformer_self_attn\.(query|key|value)_global\.")

    def read_positions(self, keys: Keys) -> tuple[int, int]:
        source = keys.count("max_encoder_position_embeddings", 16384)
        return source, keys.count("max_decoder_position_embeddings", 1024)

    def read_more(self, keys: Keys) -> None:
        layers = keys.layers("encoder_layers")
        given = keys.take("attention_window", object, 512)
        windows = given if isinstance(given, list) else [given] * layers
        if len(windows) != layers or not all(type(one) is int and one > 0 and one % 2 == 0 for one in windows):
            raise CheckpointError(
                f"config.json: attention_window must be an even number, or one for each layer, got {given!r:.100}"
            )
        keys.skip("attention_probs_dropout_prob")
        self.windows = tuple(windows)

    def biases(self, length: int, device: torch.device) -> Iterator[torch.Tensor]:
        return (mask_beyond(window // 2, length, device) for window in self.windows)

    def rename(self, name: str) -> str:
        return super().rename(substitute(name, _NAMES))
