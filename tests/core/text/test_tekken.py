"""Tokenizers of Mistral's: ids are those that merging by rank gives, as its own library does it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Fast
from tokenizers import models

from lsv.text.tokenizer import NoTokenizer, Tokenizer
from lsv_base.errors import CheckpointError

from .ranking import TEXTS, merge_by_rank, ranks

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = 24
TOOLS = [{"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object"}}}]
SHOWN = f"[AVAILABLE_TOOLS]{json.dumps(TOOLS)}[/AVAILABLE_TOOLS]"
CALL = {"id": "call00000", "type": "function", "function": {"name": "now", "arguments": {"at": "Zürich"}}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Time in Zürich?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "now", "tool_call_id": "call00000", "content": "noon"},
    {"role": "assistant", "content": "Noon."},
    {"role": "user", "content": "Thanks."},
]  # fmt: skip


def content(**changes: Any) -> dict[str, Any]:
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(one).decode(), "token_str": None}
        for one, rank in ranks().items()
    ]
    # of ranks that are beyond the size a model of this tokenizer knows nothing
    beyond = {"rank": len(vocabulary), "token_bytes": base64.b64encode(b"the cat").decode(), "token_str": None}
    config = {
        "pattern": PATTERN, "num_vocab_tokens": len(vocabulary) + 1, "default_vocab_size": len(vocabulary) + SPECIALS,
        "default_num_special_tokens": SPECIALS, "version": "v3",
    }  # fmt: skip
    return {"config": config, "vocab": [*vocabulary, beyond], **changes}


def write(folder: Path, **changes: Any) -> Path:
    (folder / "tekken.json").write_text(json.dumps(content(**changes)))
    return folder


def merged(text: str) -> list[int]:
    return [rank + SPECIALS for rank in merge_by_rank(text, PATTERN)]


@pytest.mark.row("F-003", "F-231")
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_merging_by_rank(tmp_path: Path, text: str) -> None:
    tokenizer = Tokenizer.load(write(tmp_path))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == merged(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text) == [1, *ids]


def test_special_tokens_have_the_first_ids(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path))
    ids = tokenizer.encode("[INST]the cat[/INST]<SPECIAL_23></s>", add_special_tokens=False)
    assert ids == [3, *merged("the cat"), 4, 23, 2]
    assert tokenizer.decode(ids) == "the cat"
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (1, (2,), len(ranks()) + SPECIALS)
    names = [("<unk>", True), ("<s>", True), ("</s>", True), ("<pad>", True), ("[THINK]", False)]
    listed = [{"rank": rank, "token_str": name, "is_control": control} for rank, (name, control) in enumerate(names)]
    tokenizer = Tokenizer.load(write(tmp_path, special_tokens=listed))
    assert tokenizer.encode("[THINK]<SPECIAL_5>", add_special_tokens=False) == [4, 5]
    assert tokenizer.decode([4, 5]) == "[THINK]"


@pytest.mark.row("F-183", "F-231")
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            "v7",
            '[INST]Time in Zürich?[/INST][TOOL_CALLS][{"name": "now", "arguments": {"at": "Zürich"}, '
            '"id": "call00000"}]</s>[TOOL_RESULTS]call00000[TOOL_CONTENT]noon[/TOOL_RESULTS]Noon.</s>'
            f"{SHOWN}[INST]Thanks.[/INST]",
        ),
        (
            "v11",
            '[INST]Time in Zürich?[/INST][TOOL_CALLS]now[CALL_ID]call00000[ARGS]{"at": "Zürich"}'
            f"</s>[TOOL_RESULTS]call00000[TOOL_CONTENT]noon[/TOOL_RESULTS]Noon.</s>{SHOWN}[INST]Thanks.[/INST]",
        ),
        (
            "v13",
            SHOWN + '[INST]Time in Zürich?[/INST][TOOL_CALLS]now[ARGS]{"at": "Zürich"}'
            "</s>[TOOL_RESULTS]noon[/TOOL_RESULTS]Noon.</s>[INST]Thanks.[/INST]",
        ),
    ],
)
def test_chats_have_the_form_of_the_version(tmp_path: Path, version: str, expected: str) -> None:
    """As mistral_common 1.13 writes these messages."""
    config = {**content()["config"], "version": version}
    tokenizer = Tokenizer.load(write(tmp_path, config=config))
    assert tokenizer.render_chat(CONVERSATION, tools=TOOLS) == f"<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT]{expected}"
    (tmp_path / "chat_template.jinja").write_text("its own")
    assert Tokenizer.load(tmp_path).render_chat(CONVERSATION) == "its own"


def test_a_version_without_a_template_needs_one(tmp_path: Path) -> None:
    assert not Tokenizer.load(write(tmp_path)).has_chat_template


def test_which_file_is_read(tmp_path: Path) -> None:
    Fast(models.WordLevel({"other": 0}, unk_token="other")).save(str(tmp_path / "tokenizer.json"))
    write(tmp_path)
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert Tokenizer.load(tmp_path).encode("the cat") == [0]
    named = Tokenizer.load(tmp_path / "tekken.json")
    assert named.encode("the cat") == [1, *merged("the cat")]
    assert named.eos_ids == (2, 7)
    assert NoTokenizer(tmp_path / "tekken.json").eos_ids == (7,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (lambda: {"vocab": []}, "it must have .* sequences, their ranks from 0 on"),
        (lambda: {"vocab": [{"rank": 0, "token_bytes": "!"}]}, "base64"),
        (lambda: {"vocab": content()["vocab"][::-1]}, "their ranks from 0 on"),
        (lambda: {"vocab": [{**one, "token_bytes": "YQ=="} for one in content()["vocab"]]}, "sequence is there twice"),
        (lambda: {"vocab": [{**one, "token_bytes": "YWFh" * 2000} for one in content()["vocab"]]}, "that no model has"),
        (lambda: {"special_tokens": [{"rank": 1, "token_str": "<s>"}]}, "must have the ranks from 0 on"),
        (lambda: {"special_tokens": [{"rank": 0, "token_str": "<s>"}]}, "it has no </s>, <pad>, <unk>"),
        (lambda: {"config": {**content()["config"], "pattern": "("}}, "can't be made a tokenizer"),
        (lambda: {"config": {**content()["config"], "default_num_special_tokens": 10**12}}, "its 10000"),
        (lambda: {"config": {}}, "required field `pattern`"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(tmp_path: Path, changes: Callable[[], dict[str, Any]], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.load(write(tmp_path, **changes()))
