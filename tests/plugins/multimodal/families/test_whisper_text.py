"""Whisper's prompts and time marks against transformers' tokenizer, and the files that checkpoints have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from lsv.media.transcriber import Transcriber
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.families.whisper.languages import NAMES
from lsv_multimodal.families.whisper.rules import Timestamps, WhisperRules
from lsv_multimodal.families.whisper.text import WhisperTranscriber
from lsv_testing.tiny_hearing import tiny_hearing


def rules_of(whisper: Transcriber, *, timed: bool) -> WhisperRules:
    (rules,) = whisper.logits_processors(timed=timed).values()
    assert isinstance(rules, WhisperRules)
    return rules


def load(folder: Path) -> WhisperTranscriber:
    return WhisperTranscriber(folder, json.loads((folder / "config.json").read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_hearing(tmp_path_factory.mktemp("several"))


@pytest.fixture(scope="module")
def whisper(folder: Path) -> Transcriber:
    return load(folder)


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Transcriber:
    return load(tiny_hearing(tmp_path_factory.mktemp("english"), languages=(), seconds=10))


@pytest.fixture(scope="module")
def spell(folder: Path) -> Callable[[tuple[int, ...]], list[str]]:
    names = {
        token["id"]: token["content"] for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    }
    return lambda ids: [names.get(token, chr(token)) for token in ids]


def test_it_is_light() -> None:
    module = "lsv_multimodal.families.whisper.text"
    code = f"import sys, {module}; print({{'torch', 'transformers', 'numpy'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_languages_are_named_as_transformers_does() -> None:
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    assert NAMES == LANGUAGES


def test_prompts(whisper: Transcriber, spell: Callable[..., list[str]]) -> None:
    assert spell(whisper.prompt("transcribe", "de", timed=True)) == [
        "<|startoftranscript|>",
        "<|de|>",
        "<|transcribe|>",
    ]
    assert spell(whisper.prompt("translate", "en", timed=False)) == [
        "<|startoftranscript|>", "<|en|>", "<|translate|>", "<|notimestamps|>",
    ]  # fmt: skip
    asked, codes = whisper.ask_language()
    assert spell(asked) == ["<|startoftranscript|>"]
    assert dict(zip(spell(tuple(codes)), codes.values(), strict=True)) == {"<|en|>": "en", "<|de|>": "de"}
    prompt, silent = whisper.ask_silence() or ((), 0)
    assert spell((*prompt, silent)) == ["<|startoftranscript|>", "<|nospeech|>"]
    assert (whisper.seconds, whisper.languages) == (30.0, {"en": "english", "de": "german"})


def test_earlier_text_is_cut_to_half_the_context(whisper: Transcriber, spell: Callable[..., list[str]]) -> None:
    shown = spell(whisper.prompt("transcribe", "en", timed=True, before=(*b"abc", 257, 300)))
    assert shown[:5] == ["<|startofprev|>", "a", "b", "c", "<|startoftranscript|>"]
    longest = whisper.prompt("transcribe", "en", timed=True, before=tuple(range(100)))
    assert longest[1:32] == tuple(range(69, 100))
    assert len(longest) == 32 + 3


def test_a_model_that_knows_english_alone(english: Transcriber, spell: Callable[..., list[str]]) -> None:
    assert len(english.prompt("transcribe", "en", timed=True)) == 1
    assert (english.seconds, english.languages) == (10.0, {"en": "english"})
    with pytest.raises(BadRequest, match="nothing to translate"):
        english.prompt("translate", "en", timed=True)
    with pytest.raises(BadRequest, match="does not know 'de'; it knows en"):
        english.prompt("transcribe", "de", timed=True)


def test_unknown_languages_are_refused(whisper: Transcriber) -> None:
    with pytest.raises(BadRequest, match="does not know 'xx'; it knows de, en"):
        whisper.prompt("transcribe", "xx", timed=False)


def test_rules_are_those_of_the_checkpoint(folder: Path, whisper: Transcriber) -> None:
    given = json.loads((folder / "generation_config.json").read_text())
    none = given["no_timestamps_token_id"]
    timed, plain = rules_of(whisper, timed=True), rules_of(whisper, timed=False)
    assert timed.never == (*given["suppress_tokens"], none)
    assert plain.never == (*given["suppress_tokens"], *range(none + 1, none + 1502))
    assert timed.not_begin == plain.not_begin == tuple(given["begin_suppress_tokens"])
    assert timed.timestamps == Timestamps(first=none + 1, text_end=given["eos_token_id"], max_initial=50)
    assert plain.timestamps is None


def test_spans_have_the_offsets_that_transformers_finds(folder: Path, whisper: Transcriber) -> None:
    # the time marks begin behind the last special token that a tokenizer's settings name
    theirs: Any = transformers.WhisperTokenizer.from_pretrained(folder, additional_special_tokens=["<|notimestamps|>"])
    rules = rules_of(whisper, timed=True)
    assert rules.timestamps is not None
    mark = rules.timestamps.first

    ids = [mark, *b" One", mark + 50, mark + 75, *b" two", mark + 120, mark + 120, *b" three.", mark + 1450, 256]
    offsets = theirs.decode(ids, output_offsets=True)["offsets"]
    ours = whisper.spans(ids, 30.0)
    assert [(span.start, span.stop) for span in ours] == [one["timestamp"] for one in offsets]
    assert [bytes(span.ids).decode() for span in ours] == [one["text"] for one in offsets]


def test_spans_end_with_the_sound(whisper: Transcriber) -> None:
    rules = rules_of(whisper, timed=True)
    assert rules.timestamps is not None
    mark = rules.timestamps.first
    shown = [
        (span.start, span.stop, bytes(span.ids))
        for span in whisper.spans([mark + 5, *b"a", mark + 200, mark + 200, *b"b", mark + 300, mark + 400, *b"c"], 5.0)
    ]
    assert shown == [(0.1, 4.0, b"a"), (4.0, 5.0, b"b")]
    (whole,) = whisper.spans([*b"abc", 256], 2.5)
    assert (whole.start, whole.stop, bytes(whole.ids)) == (0.0, 2.5, b"abc")
    assert whisper.spans([mark, mark + 3, 256], 2.5) == ()


def test_what_generation_config_leaves_out_is_found_by_its_name(
    folder: Path, whisper: Transcriber, tmp_path: Path
) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    bare = load(tmp_path)
    assert bare.languages == whisper.languages
    for task in ("transcribe", "translate"):
        asked = {"timed": False, "before": (1, 2)}
        assert bare.prompt(task, "de", **asked) == whisper.prompt(task, "de", **asked)
    assert rules_of(bare, timed=True).timestamps == rules_of(whisper, timed=True).timestamps


def test_a_checkpoint_that_says_nothing_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"which token <\|\w+\|> is"):
        load(tmp_path)
