"""The tokenizer of an engine under the name that vLLM's users reach it by."""

from __future__ import annotations

from lsv.engine.offline.arguments import refuse_adapters
from lsv.text.tokenizer import Tokenizer


class TokenizerGroup:
    """A tokenizer as vLLM's users call it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, prompt: str, request_id: str | None = None, lora_request: object = None) -> list[int]:
        """The ids of a prompt, with the special tokens that the tokenizer puts around it."""
        refuse_adapters(lora_request)
        return self._tokenizer.encode(prompt)

    def get_lora_tokenizer(self, lora_request: object = None) -> Tokenizer:
        """The model's own: there are no adapters."""
        refuse_adapters(lora_request)
        return self._tokenizer
