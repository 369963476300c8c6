"""The process that runs a checkpoint's code: ``python -m lsv_base.remote_code.main FD PARENT``.

See ``lsv_base.processes.side``. Libraries are imported first; the code itself runs once the process is confined.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from functools import cached_property
from types import ModuleType
from typing import Any

from lsv_base.errors import CheckpointError, LsvError
from lsv_base.processes.side.main import Loaded, run
from lsv_base.remote_code.messages import (
    AddedToken,
    Begin,
    Command,
    Config,
    Decode,
    Describe,
    Description,
    Encode,
    Ids,
    MakeConfig,
    Reply,
    Text,
)

_PACKAGE = "lsv_checkpoint_code"
"""What the folder of the checkpoint's modules is imported as."""
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Code:
    """A class of the checkpoint's, and what is made of it."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin

    def carry_out(self, command: Command) -> Iterator[Reply]:
        """The reply to a command. Raises ``CheckpointError`` for what the code raises."""
        try:
            yield self._do(command)
        except (LsvError, MemoryError):
            raise
        except Exception as cause:
            raise CheckpointError(
                f"the checkpoint's own code {self._begin.reference} failed: {type(cause).__name__}: {cause}"[:2000]
            ) from None

    def _do(self, command: Command) -> Reply:
        match command:
            case MakeConfig(given):
                return Config(self._config(json.loads(given)))
            case Describe():
                return _describe(self._tokenizer)
            case Encode(text, special):
                return Ids([int(one) for one in self._tokenizer.encode(text, add_special_tokens=special)])
            case Decode(ids, skip):
                return Text(_decode(self._tokenizer, ids, skip))

    @cached_property
    def _class(self) -> Any:
        package = ModuleType(_PACKAGE)
        package.__path__ = [self._begin.code]
        sys.modules[_PACKAGE], sys.dont_write_bytecode = package, True
        module, _, name = self._begin.reference.rpartition(".")
        return getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)

    @cached_property
    def _tokenizer(self) -> Any:
        return self._class.from_pretrained(self._begin.folder, local_files_only=True)

    def _config(self, given: dict[str, Any]) -> bytes:
        """All keys, under the names that others know them by."""
        config = self._class.from_dict(given)
        made = json.loads(config.to_json_string(use_diff=False))
        for standard, own in (getattr(config, "attribute_map", None) or {}).items():
            if own in made:
                made[standard] = made.pop(own)
        return json.dumps(made).encode()


def _describe(tokenizer: Any) -> Description:
    named = {name: str(getattr(tokenizer, name)) for name in _NAMED if getattr(tokenizer, name, None) is not None}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return Description(fast=backend.to_str(), named=named)
    added = {int(one): token for one, token in tokenizer.added_tokens_decoder.items()}
    ids = range(max(len(tokenizer), int(tokenizer.vocab_size), max(added, default=-1) + 1))
    pieces = [_piece(tokenizer, one) for one in ids]
    return Description(
        pieces=tuple(pieces),
        texts=tuple(_decode(tokenizer, [one], False) if piece else "" for one, piece in zip(ids, pieces, strict=True)),
        added=tuple(AddedToken(one, str(token.content), bool(token.special)) for one, token in added.items()),
        named=named,
    )


def _piece(tokenizer: Any, token: int) -> str:
    """A token's piece; empty for a number that is none."""
    try:
        piece = tokenizer.convert_ids_to_tokens(token)
    except (IndexError, KeyError, ValueError, TypeError):
        return ""
    return piece.decode(errors="replace") if isinstance(piece, bytes) else _unicode(str(piece or ""))


def _decode(tokenizer: Any, ids: list[int], skip: bool) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    return _unicode(str(text))


def _unicode(text: str) -> str:
    """Text without lone surrogates, which no message can hold."""
    return text.encode(errors="replace").decode()


def _load(begin: Begin) -> Loaded:
    # before the process is confined; files about configs may define processors, too
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase, ProcessorMixin  # noqa: F401

    return Loaded(Code(begin).carry_out, readable=(begin.folder, begin.code))


if __name__ == "__main__":
    sys.exit(run("code", Begin | Command, _load))
