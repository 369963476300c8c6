"""GPT-Neo (Black et al. 2021): GPT-2 with windows in some layers, and products of queries and keys as they are."""

from __future__ import annotations

from dataclasses import replace

from lsv_base.errors import CheckpointError
from lsv_models.gpt.gpt2 import GPT2
from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys


class GptNeo(Gpt):
    form = replace(GPT2, attn="attn.attention", projections=Projections(out="out_proj"), qkv_bias=False)
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        c = GptConfig.read(keys)
        kinds = _read_kinds(keys, c.layers)
        window = keys.count("window_size", 256)
        windows = tuple(window if kind == "local" else None for kind in kinds)
        return replace(c, scales=(1.0,) * c.layers, windows=windows), self.form


def _read_kinds(keys: Keys, layers: int) -> list[str]:
    """By layer, from ``attention_types``: [[kinds, how often they come in turn] …]."""
    written = keys.maybe("attention_layers", list)
    runs = keys.maybe("attention_types", list) or [[["global", "local"], layers // 2]]
    try:
        kinds = [str(kind) for cycle, count in runs for _ in range(int(count)) for kind in cycle]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != layers or set(kinds) - {"global", "local"} or (written or kinds) != kinds:
        raise CheckpointError(
            f"config.json: attention_types must make global and local layers, {layers} in all, got {runs!r:.100}"
        )
    return kinds
