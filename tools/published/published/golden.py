"""What transformers and PEFT answer, kept in tests/real/golden: see ``make test-real``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from transformers.utils.chat_template_utils import render_jinja_template

from lsv.text.tokenizer import Tokenizer
from lsv_bench.eval.perplexity import spans
from published.models import Published
from published.prompts import DOCUMENTS, TEXTS, conversations, read_document
from published.reference import Answer, answer_greedily, load_reference, log_likelihood

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "real" / "golden"
COUNT = 24
"""Tokens of an answer."""
CONTEXT, STRIDE = 512, 256
TEXT, CHARACTERS = "build.md", 6000
"""What perplexity is measured on."""


class Golden(msgspec.Struct):
    """``nll`` is the negative log-likelihood of the text, in nats. ``adapted`` are answers with the adapter."""

    answers: list[Answer]
    scored: int
    nll: float
    adapted: list[Answer] = []


class References:
    """Asks the references, each model loaded once."""

    def __init__(self, published: Published) -> None:
        self.published = published

    def smollm2(self) -> Golden:
        """Prompts are tokenised by lsv: no other implementation reads this file's tokenizer as llama.cpp does."""
        tokenizer = Tokenizer.load(str(self.published.plain_smollm2()))
        golden = self._golden(self._smollm2, tokenizer, self._chats(tokenizer))
        golden.adapted = self._adapt(golden.answers[:4])
        return golden

    def gemma3(self) -> Golden:
        """Prompts are tokenised by transformers."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.published.folder("tokenizers/gemma3"))
        return self._golden(load_reference(self.published.gemma3()), tokenizer, [])

    def _golden(self, model: Any, tokenizer: Any, chats: list[tuple[str, list[int]]]) -> Golden:
        prompts = [*chats, *((name, list(tokenizer.encode(text))) for name, text in TEXTS.items())]
        for name, (file, length) in DOCUMENTS.items():
            prompts.append((name, list(tokenizer.encode(self._read(file)))[:length]))
        answers = [answer_greedily(model, name, prompt, COUNT) for name, prompt in prompts]
        ids = list(tokenizer.encode(self._read(TEXT)[:CHARACTERS]))
        nll = -sum(log_likelihood(model, span.ids, span.first) for span in spans(ids, CONTEXT, STRIDE))
        return Golden(answers, len(ids) - 1, round(nll, 4))

    @cached_property
    def _smollm2(self) -> Any:
        return load_reference(self.published.smollm2())

    def _chats(self, tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
        """Conversations, rendered by transformers."""
        source = tokenizer.template_source(None)
        found = []
        for name, messages in conversations():
            (text,), _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True)
            found.append((name, tokenizer.encode(text, add_special_tokens=False)))
        return found

    def _adapt(self, plain: list[Answer]) -> list[Answer]:
        from peft import PeftModel

        model = PeftModel.from_pretrained(self._smollm2, self.published.adapter()).eval()
        return [answer_greedily(model, f"adapted {answer.name}", answer.prompt, COUNT) for answer in plain]

    def _read(self, file: str) -> str:
        return read_document(self.published.folder("text"), file)


def read_golden(name: str) -> Golden:
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Golden)


def write_golden(name: str, golden: Golden) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_bytes(b"".join(_lines(golden)))


def _lines(golden: Golden) -> Iterator[bytes]:
    """An answer a line, so that a change shows which one differs."""
    for name in ("answers", "adapted"):
        lines = [msgspec.json.encode(answer) for answer in getattr(golden, name)]
        yield b"%s\n%s: [\n%s\n]" % (b"{" if name == "answers" else b",", msgspec.json.encode(name), b",\n".join(lines))
    yield b',\n"scored": %d,\n"nll": %s\n}\n' % (golden.scored, msgspec.json.encode(golden.nll))


def main(place: str) -> None:
    """Ask the references anew, and measure what weight formats lose."""
    from published.formats import write_formats

    references = References(Published(Path(place)))
    write_golden("smollm2", references.smollm2())
    write_golden("gemma3", references.gemma3())
    write_formats(references.published)


if __name__ == "__main__":
    main(sys.argv[1])
