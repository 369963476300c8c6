"""Vocabularies of GGUF files: byte-level ones beside the tokenizer they came from, scored ones beside plain merging."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import lsv_demo
from lsv.text.tokenizer import Tokenizer
from lsv_base.errors import CheckpointError
from lsv_quant.gguf.tokenizer import write_tokenizer

DEMO = Path(lsv_demo.__file__).parent / "checkpoint"
TEXTS = (
    "Where does Mira live?",
    "It's 12345 o'clock,\n\n  she'll SAY  so…",
    "naïve Straße 北京 😀",
    " x",
    "a  b\tc\r\n",
)


def load(folder: Path, metadata: dict[str, Any]) -> Tokenizer:
    write_tokenizer(metadata, folder)
    return Tokenizer.load(folder)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_text(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def test_a_byte_level_vocabulary_is_the_tokenizer_it_came_from(tmp_path: Path) -> None:
    own, source = Tokenizer.load(DEMO), json.loads((DEMO / "tokenizer.json").read_text())
    special = {token["id"]: token["content"] for token in source["added_tokens"]}
    texts = {number: text for text, number in source["model"]["vocab"].items()} | special
    settings = json.loads((DEMO / "tokenizer_config.json").read_text())
    assert own.bos_id is None or own.bos_id in special
    found = load(
        tmp_path,
        {
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [texts[number] for number in range(len(texts))],
            "tokenizer.ggml.token_type": [3 if number in special else 1 for number in range(len(texts))],
            "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in source["model"]["merges"]],
            "tokenizer.ggml.eos_token_id": own.eos_ids[0],
            "tokenizer.chat_template": "{{ messages[0]['content'] }}",
        },
    )  # fmt: skip
    assert (found.vocab_size, found.special_ids) == (own.vocab_size, own.special_ids)
    assert found.special_tokens["eos_token"] == settings["eos_token"]
    assert found.render_chat([{"role": "user", "content": "hm"}]) == "hm"
    for text in (*TEXTS, f"a{special[min(special)]}b"):
        assert found.encode(text, add_special_tokens=False) == own.encode(text, add_special_tokens=False)
        assert found.decode(found.encode(text), skip_special_tokens=False) == text


ALPHABET = [chr(n) if chr(n).isprintable() and n != 32 else "Ġ" for n in range(32, 127)]


@pytest.mark.parametrize(
    ("pre", "wanted"),
    [
        ("gpt-2", ["It", "'s", "Ġ12345", "Ġok", "Ġ", "Ġnow"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġok", "Ġ", "Ġnow"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "45", "Ġok", "Ġ", "Ġnow"]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġok", "Ġ", "Ġnow"]),
        ("command-r", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġok", "Ġ", "Ġnow"]),
        ("chatglm-bpe", ["It", "'s", "Ġ", "123", "45", "Ġok", "Ġ", "Ġnow"]),
        ("gpt-4o", ["It's", "Ġ", "123", "45", "Ġok", "Ġ", "Ġnow"]),
        ("deepseek-v3", ["It", "'s", "Ġ", "123", "45", "Ġok", "Ġ", "Ġnow"]),
        ("deepseek-coder", ["It", "'", "s", "Ġ", "1", "2", "3", "4", "5", "Ġok", "Ġ", "Ġnow"]),
        ("falcon", ["It", "'", "s", "Ġ", "123", "45", "Ġok", "Ġ", "Ġnow"]),
        ("default", ["It", "'", "s", "Ġ", "123", "45", "Ġok", "Ġ", "Ġnow"]),
        (None, ["It", "'", "s", "Ġ", "123", "45", "Ġok", "Ġ", "Ġnow"]),
        ("qwen35", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġok", "Ġ", "Ġnow"]),
        ("stablelm2", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġok", "Ġ", "Ġnow"]),
        ("tekken", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ġok", "Ġ", "Ġnow"]),
    ],
)
def test_text_is_cut_as_the_file_says(
    pre: str | None, wanted: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ALPHABET}
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    tokenizer: Any = load(tmp_path, metadata)
    found = tokenizer._backend.pre_tokenizer.pre_tokenize_str("It's 12345 ok  now")
    assert [piece for piece, _ in found] == wanted
    assert ("does not say how its tokenizer splits text" in caplog.text) == (pre in (None, "default"))


SCORED = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), "<tool>", *"▁abcd,"]
SCORED += ["ab", "cd", "▁a", "abc", "bcd", "▁ab", "abcd", "▁abcd", "dd", "aa"]


def scored(**changes: Any) -> dict[str, Any]:
    kinds = [2, 3, 3, *[6] * 256, 4, *[1] * (len(SCORED) - 260)]
    draw = random.Random(0)
    scores = [0.0] * 260 + [-draw.random() * 10 for _ in range(len(SCORED) - 260)]
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": SCORED, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, **changes,
    }  # fmt: skip


def merge(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's BPE: while two neighbours make a piece, those with the highest score, the first of them, do."""
    found = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [(scores[a + b], -place) for place, (a, b) in enumerate(pairwise(found)) if a + b in scores]
        if not pairs:
            return found
        place = -max(pairs)[1]
        found[place : place + 2] = [found[place] + found[place + 1]]


def test_a_scored_vocabulary_merges_by_score(tmp_path: Path) -> None:
    metadata = scored()
    tokenizer: Any = load(tmp_path, metadata)
    scores = dict(zip(SCORED[260:], metadata["tokenizer.ggml.scores"][260:], strict=True))
    draw = random.Random(1)
    for _ in range(200):
        text = "".join(draw.choice("aabbccdd ,") for _ in range(draw.randrange(1, 30)))
        ids = tokenizer.encode(text)
        assert ids[0] == 1
        assert [SCORED[token] for token in ids[1:]] == merge(text, scores)
        assert tokenizer.decode(ids) == text


def test_what_is_no_piece_becomes_bytes(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, scored())
    ids = tokenizer.encode("aé<tool>b", add_special_tokens=False)
    assert [SCORED[token] for token in ids[1:4]] == ["<0xC3>", "<0xA9>", "<tool>"]
    assert tokenizer.decode(tokenizer.encode("é\n北 a")) == "é\n北 a"


def test_spaces_in_front_and_ends_are_as_the_file_says(tmp_path: Path) -> None:
    changes = {"add_space_prefix": False, "add_bos_token": False, "add_eos_token": True}
    tokenizer = load(tmp_path, scored(**{f"tokenizer.ggml.{key}": value for key, value in changes.items()}))
    assert [SCORED[token] for token in tokenizer.encode("a,")] == ["a", ",", "</s>"]
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"


def test_an_unknown_tokenizer_is_left_to_the_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CheckpointError, match="name a folder that has one with --tokenizer"):
        load(tmp_path, {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "newest", "tokenizer.ggml.tokens": ["a"]})
    assert "(gpt2, newest) is not known" in caplog.text


def test_named_chat_templates(tmp_path: Path) -> None:
    more = {
        "tokenizer.chat_template": "one",
        "tokenizer.chat_templates": ["tools"],
        "tokenizer.chat_template.tools": "two",
    }
    tokenizer = load(tmp_path, scored(**more))
    assert tokenizer.render_chat([{"role": "user", "content": ""}], template="tools") == "two"
