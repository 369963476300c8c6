"""Tokens that a checkpoint adds to its vocabulary, by the files beside its weights."""

from __future__ import annotations

from pathlib import Path

from lsv.resolve.locate import read_object


def named_tokens(folder: Path) -> dict[str, int]:
    """Their ids by their text. Raises ``CheckpointError`` for a file that is no JSON object."""
    added = (read_object(folder / "tokenizer.json") or {}).get("added_tokens")
    if added is not None:
        return {token["content"]: token["id"] for token in added}
    decoder = (read_object(folder / "tokenizer_config.json") or {}).get("added_tokens_decoder") or {}
    listed = {token["content"]: int(number) for number, token in decoder.items()}
    return {**listed, **(read_object(folder / "added_tokens.json") or {})}
