"""What processors need of a checkpoint's tokenizer: tokens that are added to its vocabulary, and how it reads text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lsv.resolve.locate import read_object
from lsv_base.errors import CheckpointError
from lsv_base.untrusted.files import check_regular


def named_tokens(folder: Path) -> dict[str, int]:
    """Their ids by their text. Raises ``CheckpointError`` for a file that is no JSON object."""
    added = (read_object(folder / "tokenizer.json") or {}).get("added_tokens")
    if added is not None:
        return {token["content"]: token["id"] for token in added}
    decoder = (read_object(folder / "tokenizer_config.json") or {}).get("added_tokens_decoder") or {}
    listed = {token["content"]: int(number) for number, token in decoder.items()}
    return {**listed, **(read_object(folder / "added_tokens.json") or {})}


def find_token(folder: Path, token: str) -> int:
    """The id of an added token. Raises ``CheckpointError`` where there is none of that text."""
    found = named_tokens(folder).get(token)
    if found is None:
        raise CheckpointError(f"{folder}: the tokenizer has no token {token}")
    return found


def load_tokenizer(folder: Path, written: str) -> Any:
    """The ``tokenizers.Tokenizer`` of a checkpoint. Raises ``CheckpointError`` where ``written``, which is written with
    it, can't be.
    """
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json, which {written} are written with")
    return Tokenizer.from_file(str(check_regular(file)))
