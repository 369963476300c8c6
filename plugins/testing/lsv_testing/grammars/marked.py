"""A tokenizer of bytes and special texts, and what a grammar lets it write."""

from __future__ import annotations

from lsv.grammars.grammar import Grammar, Vocabulary

END = 256


class MarkedBytes:
    """A token for each byte, and one for each special text."""

    def __init__(self, *special: str) -> None:
        self.special = {text: END + 1 + index for index, text in enumerate(special)}
        self.special_ids = frozenset(self.special.values())

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        while text:
            mark = next((mark for mark in self.special if text.startswith(mark)), None)
            ids += [self.special[mark]] if mark else list(text[0].encode())
            text = text[len(mark) if mark else 1 :]
        return ids

    def token_text(self, token: int) -> str:
        return next((text for text, id in self.special.items() if id == token), None) or bytes([token]).decode()

    @property
    def vocabulary(self) -> Vocabulary:
        tokens = (*(bytes([byte]) for byte in range(256)), b"<end>", *(text.encode() for text in self.special))
        return Vocabulary(
            tokens=tokens, eos=(END,), special=self.special_ids | {END}, encode=lambda text: list(text.encode())
        )


def allows(grammar: Grammar, tokenizer: MarkedBytes, text: str) -> bool:
    """Whether an answer may be this text, and nothing more."""
    matcher = grammar.begin()
    for token in (*tokenizer.encode(text), END):
        if matcher.finished:
            return token == END
        row = memoryview(bytearray(4 * -(-len(tokenizer.vocabulary.tokens) // 32))).cast("I")
        matcher.fill(row)
        if not row[token // 32] >> token % 32 & 1:
            return False
        assert matcher.accept([token])
    return True
