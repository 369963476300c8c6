"""Adds tokens that other files of a folder name and its tokenizer.json lacks.

Files go in the order in which transformers reads them. Where tokenizer_config.json has ``added_tokens_decoder``,
special_tokens_map.json and added_tokens.json are not read. Otherwise special_tokens_map.json replaces keys of
tokenizer_config.json, and added_tokens.json gives ids.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from lsv.text.backends import read_json
from lsv_base.errors import CheckpointError

log = logging.getLogger(__name__)

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""The keys of special tokens with a fixed role."""
_FURTHER = ("extra_special_tokens", "additional_special_tokens")
_DECODER = "added_tokens_decoder"
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_TEXTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections of config.json that may have the language model's keys."""


def merge_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, with the keys of special_tokens_map.json where they count. Raises ``CheckpointError``."""
    settings = read_json(folder / "tokenizer_config.json")
    return settings if _DECODER in settings else {**settings, **read_json(folder / "special_tokens_map.json")}


def add_missing(backend: tokenizers.Tokenizer, folder: Path, settings: Mapping[str, Any]) -> None:
    """Add the tokens that other files of the folder name. ``settings`` come from ``merge_settings``.

    A token whose id exceeds the model's vocabulary stays text. Raises ``CheckpointError`` for a token that can't get
    its stated id.
    """
    stated = dict(_stated(folder, settings))
    known = backend.get_added_tokens_decoder()
    changed = [token for id, token in sorted(stated.items()) if repr(known.get(id)) != repr(token)]
    texts = {token.content for token in (*known.values(), *changed)}
    changed += [token for token in _special(settings) if token.content not in texts]
    limit, fresh = _model_tokens(folder), []
    for token in {token.content: token for token in changed}.values():
        if backend.token_to_id(token.content) is None:
            if limit is not None and backend.get_vocab_size() >= limit:
                log.info("the model has no embedding for the token %r, so it is treated as text", token.content)
                continue
            fresh.append(token.content)
        backend.add_tokens([token])
    if fresh:
        log.info(
            "%s lacks tokens that other files of the folder name; adding them: %s",
            folder / "tokenizer.json",
            _some(fresh),
        )
    for id, token in stated.items():
        if token.content in fresh and backend.token_to_id(token.content) != id:
            raise CheckpointError(
                f"{folder}: the added token {token.content!r} has the id {id}, but tokenizer.json would give it "
                f"{backend.token_to_id(token.content)}: save the tokenizer anew with transformers",
                param="tokenizer",
            )


def text_of(token: Any) -> str | None:
    """A token's text, which files write as such or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _stated(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[int, AddedToken]]:
    """The added tokens by their ids."""
    if isinstance(decoder := settings.get(_DECODER), dict):
        for id, entry in decoder.items():
            if id.isdecimal() and (token := _read(entry)) is not None:
                yield int(id), token
        return
    special = {token.content for token in _special(settings)}
    for content, id in read_json(folder / "added_tokens.json").items():
        if type(id) is int:
            yield id, AddedToken(content, normalized=content not in special, special=content in special)


def _special(settings: Mapping[str, Any]) -> Iterator[AddedToken]:
    """The special tokens with a fixed role or in a list of special tokens."""
    lists = [settings.get(key) or () for key in _FURTHER]
    further = [token for one in lists for token in (one.values() if isinstance(one, dict) else one)]
    for entry in (*(settings.get(key) for key in NAMED), *further):
        if (token := _read(entry, special=True)) is not None:
            yield token


def _read(entry: Any, **more: bool) -> AddedToken | None:
    text = text_of(entry)
    if not text:
        return None
    flags = {name: entry[name] for name in _FLAGS if type(entry.get(name)) is bool} if isinstance(entry, dict) else {}
    return AddedToken(text, **{**flags, **more})


def _model_tokens(folder: Path) -> int | None:
    """How many tokens the folder's model has; None if config.json does not say."""
    config = read_json(folder / "config.json")
    for place in (config, *(config.get(key) for key in _TEXTS)):
        if isinstance(place, dict) and type(size := place.get("vocab_size")) is int:
            return size
    return None


def _some(texts: list[str]) -> str:
    return ", ".join(texts)[:500]
