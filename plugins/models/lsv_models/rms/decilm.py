"""DeciLM: Llama with a number of KV heads for each layer."""

from __future__ import annotations

from dataclasses import replace

from lsv_base.errors import CheckpointError
from lsv_models.llama import LlamaLayer
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DenseDecoder
from lsv_runtime.nn.keys import Keys


class DeciLM(DenseDecoder):
    layer = LlamaLayer

    def read(self, keys: Keys) -> DecoderConfig:
        c = super().read(keys)
        self.kv_heads = keys.take("num_key_value_heads_per_layer", list)
        counts = [count for count in self.kv_heads if type(count) is int and count > 0 and c.heads % count == 0]
        if len(counts) != len(self.kv_heads) or len(counts) != c.layers:
            raise CheckpointError(
                f"config.json: num_key_value_heads_per_layer must be {c.layers} divisors of {c.heads}, "
                f"got {self.kv_heads!r:.100}"
            )
        return c

    def of_layer(self, c: DecoderConfig, layer: int) -> DecoderConfig:
        return replace(c, kv_heads=self.kv_heads[layer])
