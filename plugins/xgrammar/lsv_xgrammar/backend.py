"""The seam's back end over xgrammar (C++; it lets other threads go on while it compiles and fills)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import xgrammar

from lsv.grammars import masks
from lsv.grammars.grammar import Vocabulary, unfollowable
from lsv.request.structural_tag import read_structural_tag
from lsv.request.structured import StructuredOutputsParams
from lsv_xgrammar.schemas import MAX_MEMBERS, NotFollowed, exact
from lsv_xgrammar.tags import as_json
from lsv_xgrammar.tokens import Tokens

MAX_SIZE = 64 << 10
"""Characters of a form: xgrammar has no limit to what it compiles."""
_WHITESPACE = 17
"""Characters between the parts of a JSON text."""
_SHOWN = 300
"""Characters of xgrammar's message that an error shows."""


class XGrammarBackend:
    """Compiles grammars for one vocabulary; see ``lsv.grammars.grammar.GrammarBackend``."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._special = [
            text for token in vocabulary.special if (text := vocabulary.tokens[token].decode(errors="replace"))
        ]
        texts = [b"" if token in vocabulary.special else text for token, text in enumerate(vocabulary.tokens)]
        self._tokens = Tokens(texts, vocabulary.eos)
        info = xgrammar.TokenizerInfo(
            texts,
            xgrammar.VocabType.RAW,
            vocab_size=len(texts),
            stop_token_ids=list(vocabulary.eos),
            add_prefix_space=False,
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, asked: StructuredOutputsParams) -> XGrammar:
        """Raises ``BadRequest`` for what xgrammar does not follow exactly."""
        if asked.whitespace_pattern is not None:
            raise unfollowable(asked, "whitespace_pattern is not available with the back end xgrammar")
        if len(asked.text) > MAX_SIZE:
            raise unfollowable(
                asked, f"it has {len(asked.text)} characters, and the back end xgrammar takes {MAX_SIZE}"
            )
        try:
            grammar = XGrammar(self._compile(asked), self._tokens)
        except (NotFollowed, RecursionError) as cause:
            raise unfollowable(asked, str(cause)) from None
        except (RuntimeError, ValueError, TypeError, UnicodeError) as cause:
            raise unfollowable(asked, _shorten(str(cause))) from None
        first = np.zeros(self._tokens.words, np.uint32)
        grammar.begin().fill(first.data)
        if not first.any():
            raise unfollowable(asked, "no answer can have this form")
        return grammar

    def _compile(self, asked: StructuredOutputsParams) -> xgrammar.CompiledGrammar:
        if asked.form == "json_object":
            return self._schema('{"type": "object"}')
        if asked.form == "json":
            return self._schema(asked.text)
        if asked.form == "regex":
            return self._compiler.compile_regex(asked.text)
        if asked.form == "choice":
            return self._compiler.compile_grammar(_choices(asked.choice or ()))
        if asked.form == "structural_tag":
            root = read_structural_tag(asked.text)
            return self._compiler.compile_structural_tag(as_json(root, self._special))
        if "::=" in asked.text:
            return self._compiler.compile_grammar(asked.text)
        return self._compiler.compile_lark(asked.text)

    def _schema(self, text: str) -> xgrammar.CompiledGrammar:
        return self._compiler.compile_json_schema(exact(text), strict_mode=False, max_whitespace_cnt=_WHITESPACE)


class XGrammar:
    """A compiled grammar."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, tokens: Tokens) -> None:
        self._compiled = compiled
        self._tokens = tokens

    def begin(self) -> XGrammarMatcher:
        return XGrammarMatcher(xgrammar.GrammarMatcher(self._compiled), self._tokens)


class XGrammarMatcher:
    """One answer's way through a grammar."""

    def __init__(self, matcher: xgrammar.GrammarMatcher, tokens: Tokens) -> None:
        self._matcher = matcher
        self._tokens = tokens
        self._lasts = [0]
        """The last byte of the answer, after each of its tokens."""
        self._fault: str | None = None

    @property
    def finished(self) -> bool:
        if self._fault is not None or not self._matcher.is_completed():
            return False
        mask = np.zeros(self._tokens.words, np.uint32)
        self.fill(mask.data)
        masks.forbid(mask, self._tokens.eos)
        return not mask.any()

    @property
    def fault(self) -> str | None:
        return self._fault

    def accept(self, ids: Sequence[int]) -> bool:
        if self._fault is None and not all(map(self._accept, ids)):
            self._fault = "the answer can't go on: a token is not of its form"
        return self._fault is None

    def advance(self, ids: Sequence[int]) -> int:
        for count, token in enumerate(ids):
            usable = masks.allows(self._tokens.after(self._lasts[-1]), token)
            if not usable or self.finished or not self._accept(token):
                return count
        return len(ids)

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)
        del self._lasts[len(self._lasts) - count :]

    def _accept(self, token: int) -> bool:
        text = self._tokens.texts[token]
        if not self._matcher.accept_token(token):
            return False
        self._lasts.append(text[-1] if text else 0)
        return True

    def fill(self, row: memoryview) -> None:
        words = np.frombuffer(row, np.int32)
        words[:] = 0
        if self._fault is None:
            self._matcher.fill_next_token_bitmask(words[None])
            words &= self._tokens.after(self._lasts[-1]).view(np.int32)


def _choices(texts: Sequence[str]) -> str:
    if len(texts) > MAX_MEMBERS:
        raise NotFollowed(f"the back end xgrammar takes at most {MAX_MEMBERS} choices, got {len(texts)}")
    return "root ::= " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def _shorten(message: str) -> str:
    """Without the place in xgrammar's source that it begins with."""
    return message.strip().split(": ", 1)[-1][:_SHOWN]
