"""Truncation, compared with transformers: special tokens stay, text is dropped on one side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers, processors

from lsv.request.params import Side
from lsv.text.frame import Frame
from lsv.text.tokenizer import NoTokenizer, Tokenizer
from lsv_base.errors import BadRequest

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
BEGIN, END = ("<s>", len(LETTERS)), ("</s>", len(LETTERS) + 1)
SPECIAL = [BEGIN, END]
FRAMES = {
    "bert": processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B:1 </s>:1", SPECIAL),
    "roberta": processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", SPECIAL),
    "llama": processors.TemplateProcessing("<s> $A", "<s> $A <s> $B:1", SPECIAL),
    "t5": processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", SPECIAL),
    "gpt2": processors.ByteLevel(trim_offsets=False),
}
TEXT = "In the beginning there was a text that was far too long"


def make(folder: Path, frame: str) -> tuple[Tokenizer, transformers.PreTrainedTokenizerFast]:
    backend = Fast(models.BPE(vocab={letter: place for place, letter in enumerate(LETTERS)}, merges=[]))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens([text for text, _ in SPECIAL])
    backend.post_processor = FRAMES[frame]
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    return Tokenizer.load(folder), transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("frame", FRAMES)
def test_ids_are_those_of_transformers(tmp_path: Path, frame: str, side: Side):
    tokenizer, reference = make(tmp_path, frame)
    reference.truncation_side = side
    for keep in (3, 4, 20, 200):
        expected = reference(TEXT, truncation=True, max_length=keep)["input_ids"]
        assert list(tokenizer.frame.truncate(tokenizer.encode(TEXT), keep, side)) == expected


@pytest.mark.row("F-062")
def test_a_generators_prompt_keeps_its_bos_and_its_end(tmp_path: Path):
    tokenizer, reference = make(tmp_path, "llama")
    reference.truncation_side = "left"
    found = tokenizer.frame.truncate(tokenizer.encode(TEXT), 9, "left")
    assert found[0] == BEGIN[1]
    assert list(found) == reference(TEXT, truncation=True, max_length=9)["input_ids"]
    assert tokenizer.decode(found) == "too long"


def test_a_bos_that_only_the_chat_template_writes_stays(tmp_path: Path):
    tokenizer, _ = make(tmp_path, "gpt2")
    assert tokenizer.frame == Frame(bos=BEGIN[1])
    found = tokenizer.frame.truncate(tokenizer.encode("<s>" + TEXT), 5, "left")
    assert tokenizer.decode(found, skip_special_tokens=False) == "<s>long"


def test_ids_without_special_tokens_are_cut_as_they_are():
    frame = Frame((1,), (2,))
    assert frame.truncate([5, 6, 7, 8], 2, "left") == (7, 8)
    assert frame.truncate([1, 5, 6, 7, 8], 3, "right") == (1, 5, 6)
    assert frame.truncate([5, 6, 7, 2], 3, "left") == (6, 7, 2)
    assert frame.truncate([1, 2], 2, "left") == (1, 2)


def test_special_tokens_that_leave_no_room_for_text():
    with pytest.raises(BadRequest, match="to 2 tokens leaves no text besides 2 special tokens: keep at least 3"):
        Frame((1,), (2,)).truncate([1, 5, 6, 2], 2, "right")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("frame", ["bert", "roberta"])
def test_pairs_are_those_of_transformers(tmp_path: Path, frame: str, side: Side):
    tokenizer, reference = make(tmp_path, frame)
    reference.truncation_side = side
    for first, second in (("who", TEXT), (TEXT, "who"), (TEXT, TEXT[::-1])):
        ((found, _),) = tokenizer.encode_pairs([first], [second], 20, side)
        assert found == reference(first, second, truncation=True, max_length=20)["input_ids"]


def test_without_a_tokenizer_there_are_no_special_tokens(tmp_path: Path):
    assert NoTokenizer(tmp_path).frame == Frame()


@pytest.mark.parametrize("most", [3, 4, 7, 10])
@pytest.mark.parametrize("frame", [Frame((1,), (2,)), Frame((), (2,)), Frame(bos=1)], ids=str)
def test_pieces_hold_the_whole_text(frame: Frame, most: int) -> None:
    first, last = (1,) if frame.head or frame.bos else (), frame.tail
    text = tuple(range(10, 18))
    pieces = frame.split((*first, *text, *last), most)
    assert all(len(piece) <= most and piece[: len(first)] == first for piece in pieces)
    assert sum((piece[len(first) : len(piece) - len(last)] for piece in pieces), ()) == text
    assert all(piece[len(piece) - len(last) :] == last for piece in pieces)


def test_pieces_need_room_for_text() -> None:
    with pytest.raises(BadRequest, match="leave no room"):
        Frame((1,), (2,)).split((1, 5, 6, 2), 2)
