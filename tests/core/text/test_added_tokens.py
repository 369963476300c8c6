"""Tokens that other files name and tokenizer.json lacks, compared with transformers."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers

from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import CheckpointError

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
NEXT = len(LETTERS)
TEXT = "<think>hi</think> <pad>"
FLAGS = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
THINK = {"content": "<think>", **FLAGS, "special": True}
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
CASES: dict[str, dict[str, Any]] = {
    "added_tokens.json": {ADDED: {"<think>": NEXT, "</think>": NEXT + 1}},
    "added_tokens.json, special ones": {ADDED: {"<think>": NEXT}, MAP: {"extra_special_tokens": ["<think>"]}},
    "added_tokens_decoder": {CONFIG: {"added_tokens_decoder": {str(NEXT): THINK}}},
    "added_tokens_decoder goes before the other files": {
        CONFIG: {"added_tokens_decoder": {str(NEXT): THINK}}, ADDED: {"</think>": 999}, MAP: {"pad_token": "<pad>"},
    },
    "a token that swallows spaces": {CONFIG: {"added_tokens_decoder": {str(NEXT): {**THINK, "rstrip": True}}}},
    "additional_special_tokens": {CONFIG: {"additional_special_tokens": ["<think>", "</think>"]}},
    "extra_special_tokens": {CONFIG: {"extra_special_tokens": ["<think>", {"__type": "AddedToken"} | THINK]}},
    "extra_special_tokens by name": {CONFIG: {"extra_special_tokens": {"think_token": "<think>"}}},
    "special_tokens_map.json": {MAP: {"additional_special_tokens": ["<think>"], "pad_token": "<pad>"}},
    "a token with a purpose": {CONFIG: {"pad_token": "<pad>"}},
    "special_tokens_map.json goes before tokenizer_config.json": {
        CONFIG: {"pad_token": "<think>"}, MAP: {"pad_token": "<pad>"},
    },
}  # fmt: skip


def write(folder: Path, files: dict[str, Any]) -> Path:
    backend = Fast(models.BPE(vocab={letter: place for place, letter in enumerate(LETTERS)}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    files = {CONFIG: {}, **files}
    files[CONFIG] = {"tokenizer_class": "PreTrainedTokenizerFast", **files[CONFIG]}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_transformers(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write(tmp_path, CASES[case])
    caplog.set_level(logging.INFO)
    found, expected = Tokenizer.load(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = found.encode(TEXT, False)
    assert ids == expected.encode(TEXT, add_special_tokens=False)
    assert max(ids) >= NEXT, "a token was added"
    assert found.decode(ids) == expected.decode(ids, skip_special_tokens=True)
    assert found.special_tokens.get("pad_token") == expected.pad_token
    assert "lacks tokens that other files of the folder name" in caplog.text


def test_a_token_that_can_not_get_its_id(tmp_path: Path):
    write(tmp_path, {ADDED: {"<think>": NEXT + 5}})
    with pytest.raises(CheckpointError, match=f"'<think>' has the id {NEXT + 5}, but .* would give it {NEXT}: save"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("config", [{"vocab_size": NEXT}, {"text_config": {"vocab_size": NEXT}}])
def test_a_token_that_the_model_does_not_have_stays_text(config: dict[str, Any], tmp_path: Path):
    write(tmp_path, {CONFIG: {"pad_token": "<pad>"}, "config.json": config})
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == NEXT
    assert len(tokenizer.encode("<pad>")) == len("<pad>")


@pytest.mark.parametrize("entry", [{"x": THINK}, {str(NEXT): 5}, {str(NEXT): {"content": 5}}, [], 5])
def test_damaged_entries_are_passed_over(entry: Any, tmp_path: Path):
    write(tmp_path, {CONFIG: {"added_tokens_decoder": entry}})
    assert Tokenizer.load(tmp_path).vocab_size == NEXT
