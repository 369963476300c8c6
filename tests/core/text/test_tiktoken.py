"""Tokenizers that are code of a checkpoint's own and known: ids are those that its code gives, which is not run."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import CheckpointError

from .ranking import TEXTS, merge_by_rank, ranks

# as tokenization_chatglm.py of GLM-4 has it
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NAMES = ("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<|user|>", "<|begin_of_image|>")
GMASK, SOP, USER = (len(ranks()) + place for place in (2, 4, 5))


def write(folder: Path, **changes: Any) -> Path:
    lines = [f"{base64.b64encode(one).decode()} {rank}" for one, rank in ranks().items()]
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    added = {str(len(lines) + place): {"content": name, **flags} for place, name in enumerate(NAMES)}
    settings = {
        "tokenizer_class": "ChatGLM4Tokenizer", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "auto_map": {"AutoTokenizer": ["tokenization_chatglm.ChatGLM4Tokenizer", None]},
        "added_tokens_decoder": added, **changes,
    }  # fmt: skip
    (folder / "tokenizer.model").write_text("\n".join(settings.pop("lines", lines)) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenization_chatglm.py").write_text("raise SystemExit('it is not run')")
    return folder


@pytest.mark.row("F-656", "F-665")
@pytest.mark.parametrize("text", [*TEXTS, "I'LL 1234567 we'Re", "\n\n a\n"])
@pytest.mark.parametrize("trust", [None, "auto"])
def test_ids_are_those_of_merging_by_rank(tmp_path: Path, text: str, trust: Any) -> None:
    tokenizer = Tokenizer.load(write(tmp_path), remote_code=trust)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == merge_by_rank(text, PATTERN)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text) == [GMASK, SOP, *ids]


def test_special_tokens_stand_for_themselves(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path))
    ids = tokenizer.encode("[gMASK]<sop><|user|>\nthe cat<|endoftext|>", add_special_tokens=False)
    assert ids == [GMASK, SOP, USER, *merge_by_rank("\nthe cat", PATTERN), len(ranks())]
    assert tokenizer.decode(ids) == "\nthe cat"
    assert (tokenizer.eos_ids, tokenizer.vocab_size) == ((len(ranks()),), len(ranks()) + len(NAMES))


def test_of_other_classes_the_code_is_needed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is code of its own, .*--trust-remote-code"):
        Tokenizer.load(write(tmp_path, tokenizer_class="ChatGLM5Tokenizer"))


LINES = ["YQ== 0", "Yg== 1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lines": ["YQ== 0", "Yg== 2"]}, "line 2 must have a sequence and the rank 1"),
        ({"lines": ["YQ== 0", "YQ== 1"]}, "a sequence is there twice"),
        ({"lines": ["! 0"]}, "base64"),
        ({"lines": ["ä 0"]}, "codec can't decode"),
        ({"lines": ["YWFh" * 2000 + " 0"]}, "it has sequences that no model has"),
        ({"added_tokens_decoder": {"2": {"content": "<sop>"}}}, r"has no \[gMASK\]"),
        (
            {"added_tokens_decoder": {"1": {"content": "<sop>"}, "2": {"content": "[gMASK]"}}, "lines": LINES},
            "there twice",
        ),
        ({"added_tokens_decoder": {"x": {"content": "<sop>"}}}, "invalid literal"),
        ({"added_tokens_decoder": [1]}, "can't be made a tokenizer"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(write(tmp_path, **changes))
