"""The tokens of a GGUF file that end an answer: those that its metadata names, and those known by their texts.

Many files name only the end of a text, and their turns end with another token. Source: the texts that llama.cpp knows
(src/llama-vocab.cpp). Its tokens for filling in code are not among them: they end no turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lsv_base.errors import CheckpointError

_PREFIX = "tokenizer.ggml."
_CONTROL = 3
_TEXTS = frozenset((
    "<EOT>", "<end_of_turn>", "<end_of_utterance>", "<eos>", "<turn|>", "<|call|>", "<|calls|>", "<|end_of_text|>",
    "<|end|>", "<|endoftext|>", "<|eom_id|>", "<|eot_id|>", "<|flush|>", "<|im_end|>", "<|return|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[EOS]", "[EOT]", "[e~[", "_<EOT>",
))  # fmt: skip
_MARKUP = "</s>"
"""Ends an answer only as a control token: in some vocabularies it is the end of a struck text in HTML."""
_CALLS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"}, {"<|flush|>", "<|call|>"})
"""Vocabularies with one of these pairs write <|end|> between the messages of one answer."""


def read_ends(metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end an answer. Raises ``CheckpointError`` for metadata of a wrong type."""
    stated = [metadata.get(f"{_PREFIX}{name}_token_id") for name in ("eos", "eot", "eom")]
    if wrong := [one for one in stated if one is not None and type(one) is not int]:
        raise CheckpointError(
            f"the GGUF file's special tokens must be token ids, found {wrong[0]!r:.100}", param="model"
        )
    tokens, kinds = (metadata.get(f"{_PREFIX}{name}") for name in ("tokens", "token_type"))
    named = ends_by_text(tokens if isinstance(tokens, list) else (), kinds if isinstance(kinds, list) else ())
    return list(dict.fromkeys([*(one for one in stated if type(one) is int), *named]))


def ends_by_text(tokens: Sequence[Any], kinds: Sequence[Any]) -> list[int]:
    """The ids of tokens whose texts say that they end a turn."""
    found = {token: id for id, token in enumerate(tokens) if isinstance(token, str) and token in _TEXTS}
    if any(pair <= found.keys() for pair in _CALLS):
        found.pop("<|end|>", None)
    controls = (id for id, token in enumerate(tokens) if token == _MARKUP and kinds[id : id + 1] == [_CONTROL])
    return sorted([*found.values(), *controls])
