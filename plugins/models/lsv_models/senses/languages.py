"""The language model of a checkpoint that sees: a native family's, by a configuration of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.decoder import Decoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.weights.naming import Prefixes
from lsv_runtime.weights.place import Weights

_LLAMA: Mapping[str, Any] = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "vocab_size": 32000,
}  # fmt: skip
LEFT_OUT: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "sliding_window": 4096},
}
"""What published files may leave out of such an object, by its ``model_type``: the sizes of Llama-7B and Mistral-7B."""


def make_language(w: Weights, keys: Keys, key: str, families: Mapping[str, type[Decoder]], max_len: int) -> Decoder:
    """The model of one of ``families``, by the ``model_type`` that config.json has under ``key``.

    Raises ``CheckpointError`` for another one.
    """
    text = keys.take(key, dict)
    kind = text.get("model_type")
    if not isinstance(kind, str) or kind not in families:
        raise CheckpointError(f"config.json: {key}.model_type is one of {', '.join(families)}, got {kind!r:.100}")
    own, whole = text.get("tie_word_embeddings"), keys.take("tie_word_embeddings", bool, False)
    # a name of its architecture would say that it is no model of text, but bare
    given = {**text, "tie_word_embeddings": whole or own, "architectures": []}
    return families[kind](w, given, max_len)


def under(place: str, prefixes: Prefixes) -> Prefixes:
    """A family's names where its model is at ``place`` of a checkpoint."""
    return tuple((f"{place}.{theirs}", own) for theirs, own in prefixes)
