"""Tokenizers of transformers, for programs that tokenise by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_MODES = ("auto", "hf", "slow")


def get_tokenizer(
    tokenizer_name: str | Path,
    *args: Any,
    tokenizer_mode: str = "auto",
    trust_remote_code: bool = False,
    revision: str | None = None,
    download_dir: str | None = None,
    **kwargs: Any,
) -> Any:
    """The tokenizer of a folder or a repository. Raises ``NotImplementedError`` for a mode of another library."""
    from transformers import AutoTokenizer

    if tokenizer_mode not in _MODES:
        raise NotImplementedError(
            f"tokenizer_mode={tokenizer_mode}: this function gives tokenizers of transformers, use one of "
            f"{', '.join(_MODES)}"
        )
    if tokenizer_mode == "slow":
        kwargs["use_fast"] = False
    return AutoTokenizer.from_pretrained(
        str(tokenizer_name),
        *args,
        trust_remote_code=trust_remote_code,
        revision=revision,
        cache_dir=download_dir,
        **kwargs,
    )


def resolve_chat_template(
    tokenizer: Any, chat_template: str | None, tools: Any, *, model_config: Any = None
) -> str | None:
    """The text of the template that a tokenizer of transformers renders with; None if it has none."""
    if chat_template is not None:
        return chat_template
    try:
        found: str | None = tokenizer.get_chat_template(chat_template, tools=tools)
    except ValueError:
        return None
    return found
