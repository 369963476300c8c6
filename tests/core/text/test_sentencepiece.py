"""Models of sentencepiece, read without its library: what they encode, and what is damaged or of another kind."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from lsv.text import backends
from lsv.text.shipped_templates import read_template
from lsv.text.tokenizer import Tokenizer
from lsv.text.vocabularies.sentencepiece import read_tokenizer
from lsv_base.errors import CheckpointError

WORDS = ["▁h", "el", "lo", "▁hel", "▁hello", "h", "e", "l", "o", "▁", "w"]
TOKENIZER = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}))
"""The tokenizer that a checkpoint's code creates."""
HELLO, SPACE, W = 263, 268, 269


def varint(number: int) -> bytes:
    head = number & 127 | (128 if number > 127 else 0)
    return bytes([head]) + (varint(number >> 7) if number > 127 else b"")


def numbered(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def piece(token: str, score: float, kind: int) -> bytes:
    return text(1, text(1, token.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + numbered(3, kind))


def model(*, kind: int = 2, squeezes: int = 0, prefix: int = 1, more: bytes = b"") -> bytes:
    """As ``spm_train --model_type=bpe --byte_fallback --normalization_rule_name=identity`` writes it."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    pieces += [(word, -float(rank), 1) for rank, word in enumerate(WORDS)]
    trainer = text(2, numbered(3, kind) + numbered(35, 1))
    normalizer = text(3, text(1, b"identity") + numbered(3, prefix) + numbered(4, squeezes))
    return b"".join(piece(*one) for one in pieces) + more + trainer + normalizer


def load(folder: Path, content: bytes, **settings: Any) -> Tokenizer:
    (folder / "tokenizer.model").write_bytes(content)
    known = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(known))
    return Tokenizer.load(folder)


def test_a_model_encodes_as_the_library_does(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, model())
    assert tokenizer.encode("hello wé") == [1, HELLO, SPACE, W, 3 + 0xC3, 3 + 0xA9]
    assert tokenizer.encode("hello wé", add_special_tokens=False)[0] == HELLO
    assert tokenizer.decode(tokenizer.encode("hello  wé")) == "hello  wé"
    assert tokenizer.encode(" w", add_special_tokens=False) == [SPACE, SPACE, W], "a space is always put in front"
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.special_ids) == (1, (2,), {0, 1, 2})


@pytest.mark.parametrize(
    ("settings", "prefix", "expected"),
    [
        ({"add_bos_token": False}, 1, [SPACE, W, 2, SPACE, W]),
        ({"add_eos_token": True}, 1, [1, SPACE, W, 2, SPACE, W, 2]),
        ({"legacy": False}, 1, [1, SPACE, W, 2, W]),
        ({"add_prefix_space": False}, 1, [1, W, 2, W]),
        ({}, 0, [1, W, 2, W]),
    ],
)
def test_what_stands_around_and_between(
    tmp_path: Path, settings: dict[str, Any], prefix: int, expected: list[int]
) -> None:
    assert load(tmp_path, model(prefix=prefix), **settings).encode("w</s>w") == expected


def test_added_tokens_follow_the_model(tmp_path: Path) -> None:
    (tmp_path / "added_tokens.json").write_text('{"<pad>": 270}')
    given = {"271": {"content": "<|end|>", "special": True}, "1": {"content": "<s>", "special": True}}
    tokenizer = load(tmp_path, model(), added_tokens_decoder=given)
    assert tokenizer.encode("w<|end|><pad>")[-2:] == [271, 270]
    assert tokenizer.special_ids == {0, 1, 2, 271}
    with pytest.raises(CheckpointError, match="is to be 275, which does not follow"):
        load(tmp_path, model(), added_tokens_decoder={"275": {"content": "<|end|>"}})


@pytest.mark.row("F-185")
@pytest.mark.parametrize("trust", [None, "auto"])
def test_a_tokenizer_that_is_code_need_not_run_where_its_model_says_all(tmp_path: Path, trust: Any) -> None:
    """Baichuan 2's: no space in front, and tokens for who speaks that the model itself never splits."""
    marks = b"".join(piece(f"<reserved_{number}>", 0.0, 4) for number in (106, 107))
    code = {"auto_map": {"AutoTokenizer": ["tokenization_baichuan.BaichuanTokenizer", None]}, "add_bos_token": False}
    load(tmp_path, model(prefix=0, more=marks), tokenizer_class="BaichuanTokenizer", use_fast=False, **code)
    (tmp_path / "tokenization_baichuan.py").write_text("raise SystemExit('it is not run')")
    tokenizer = Tokenizer.load(tmp_path, remote_code=trust)
    chat = read_template("baichuan2")
    text = tokenizer.render_chat([{"role": "user", "content": "w w"}], template=chat)
    assert tokenizer.encode(text) == [270, W, SPACE, W, 271]
    assert tokenizer.decode([270, W, 271], skip_special_tokens=False) == "<reserved_106>w<reserved_107>"


def test_code_that_is_trusted_reads_what_lsv_can_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = {"auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}}
    added = {"added_tokens_decoder": {"7000": {"content": "x"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**code, **added}))
    (tmp_path / "tokenizer.model").write_bytes(model())
    monkeypatch.setattr(backends, "open_backend", lambda folder, reference, mode: (TOKENIZER, {}))
    assert Tokenizer.load(tmp_path, remote_code="auto").vocab_size == TOKENIZER.get_vocab_size()
    with pytest.raises(CheckpointError, match="which does not follow its model"):
        Tokenizer.load(tmp_path)


CONTENTS = [b"", b"\x0a", b"no model at all", model()[:-3], b"\x0a\x02\x10\x01" * 3]


@pytest.mark.daily(content=[one for one in CONTENTS if one])  # nothing at all goes the long way of b"no model at all"
@pytest.mark.parametrize("content", CONTENTS)
def test_a_damaged_model_is_refused(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(CheckpointError):
        load(tmp_path, content)


@pytest.mark.parametrize("other", [{"kind": 1}, {"squeezes": 1}])
def test_other_kinds_are_left_to_transformers(tmp_path: Path, other: dict[str, int]) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model(**other))
    assert read_tokenizer(tmp_path / "tokenizer.model", {}, {}) is None
