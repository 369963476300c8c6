"""The checks find faults: each planted here would turn a test red."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsv import LLM
from lsv.text.tokenizer import Tokenizer
from published.checks import ask, find_differences, find_other_prompts
from published.gguf_scales import scale_block
from published.golden import read_golden
from published.models import Published
from published.rendering import find_other_renderings


def test_a_scale_is_off_by_a_hundredth(published: Published, tmp_path: Path) -> None:
    """The scale of 32 weights, one of four million."""
    file = tmp_path / "scaled.gguf"
    scale_block(published.smollm2(), file, "blk.14.ffn_down.weight", 1.01)
    answers = read_golden("smollm2").answers[:6]
    with LLM(str(file), dtype="float32", max_model_len=512, cpu_kvcache_space=1) as llm:
        assert list(find_differences(answers, ask(llm, answers)))


def test_a_beginning_of_text_is_lost(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = published.tokenizer(published.gemma3())
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text, special=True: encode(self, text, special)[special:])
    assert find_other_prompts(tokenizer, read_golden("gemma3"))


def test_a_blank_is_added_to_a_template(published: Published) -> None:
    folder = published.plain_smollm2()
    source = Tokenizer.load(folder).template_source(None)
    damaged = source.replace("<|im_start|>", "<|im_start|> ", 1)
    assert damaged != source
    assert find_other_prompts(Tokenizer.load(folder, chat_template=damaged), read_golden("smollm2"))
    assert list(find_other_renderings("damaged", damaged, source))
