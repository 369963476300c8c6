"""What vLLM's users find on an engine besides its own methods: its tokenizers, and what executes the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lsv.text.tokenizer import Tokenizer


class TokenizerGroup:
    """The engine's only tokenizer, as a group; adapters share it with the model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, prompt: str, request_id: str | None = None, lora_request: object = None) -> list[int]:
        """The ids of a prompt, with the special tokens that the tokenizer puts around it."""
        return self._tokenizer.encode(prompt)

    def get_lora_tokenizer(self, lora_request: object = None) -> Tokenizer:
        """The model's own."""
        return self._tokenizer


class ModelExecutor:
    """What executes the model, as far as others may ask something of it."""

    def __init__(self, save: Callable[..., Sequence[Path]]) -> None:
        self._save = save

    @property
    def driver_worker(self) -> Any:
        """Raises ``AttributeError``: trainers look here for a model whose weights they can overwrite."""
        raise AttributeError(
            "lsv's engine has no driver_worker: weights of a running engine can't be changed; save the model and make "
            "a new LLM of its folder"
        )

    def save_sharded_state(self, *, path: str, pattern: str | None = None, max_size: int | None = None) -> None:
        """Write the weights of each rank; see ``lsv_runtime.worker.load.saved``. Raises ``ConfigError``."""
        given: dict[str, Any] = {"pattern": pattern, "max_size": max_size}
        self._save(Path(path), **{name: value for name, value in given.items() if value is not None})
