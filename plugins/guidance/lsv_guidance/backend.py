"""The seam's back end over llguidance (Rust; it lets other threads go on while it compiles and fills)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from lsv.grammars.grammar import Vocabulary, unfollowable
from lsv.request.structural_tag import read_structural_tag
from lsv.request.structured import StructuredOutputsParams
from lsv_guidance.lark import rewrite_schemas
from lsv_guidance.patterns.pattern import remember_patterns
from lsv_guidance.schemas.json_text import read_json
from lsv_guidance.schemas.refusal import NotFollowed
from lsv_guidance.schemas.write import rewrite
from lsv_guidance.structural import StructuralTagWriter

WHITESPACE = r"(\x20|\r?\n[\x20\x09]{0,32})"
"""Between the parts of a JSON text: a space, or a line break with an indentation. Without a bound, a model that prefers
whitespace would never come to an end."""

MAX_CONVERTED = 32 << 10
"""Characters of a GBNF grammar: its conversion is Python, which keeps other threads waiting."""

_SHOWN = 300
"""Characters of llguidance's message that an error shows."""


def _limits() -> LLParserLimits:
    """What a grammar may cost: about a second to compile, some 10 ms a step, tens of megabytes."""
    return LLParserLimits(
        initial_lexer_fuel=300_000,
        max_grammar_size=200_000,
        max_lexer_states=50_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        verbose_errors=False,
    )


class GuidanceBackend:
    """Compiles grammars for one vocabulary; see ``lsv.grammars.grammar.GrammarBackend``."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._limits = _limits()
        self._special = {vocabulary.tokens[token].decode(errors="replace"): token for token in vocabulary.special}
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokenizer(vocabulary)), n_vocab=len(vocabulary.tokens), eos_token=list(vocabulary.eos)
        )

    def compile(self, asked: StructuredOutputsParams) -> GuidanceGrammar:
        """Raises ``BadRequest`` for what llguidance does not follow exactly, or not within its limits."""
        with remember_patterns():
            grammar = self._grammar_of(asked)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        first = matcher.deep_copy()
        mask = first.compute_bitmask()  # some limits and contradictions show when the first token is asked for
        if first.is_error():
            raise unfollowable(asked, _shorten(first.get_error()))
        return GuidanceGrammar(matcher, rewinds=_rewinds(first, mask))

    def _grammar_of(self, asked: StructuredOutputsParams) -> str:
        """What was asked for in llguidance's own notation."""
        if asked.form in ("json", "json_object"):
            return _schema(asked)
        if asked.form == "regex":
            return LLMatcher.grammar_from_regex(asked.text)
        if asked.form == "choice":
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, asked.choice or ())))
        if asked.form == "structural_tag":
            writer = StructuralTagWriter(
                lambda schema: _nested_schema(asked, schema), lambda text: _lark(asked, text), self._special
            )
            return LLMatcher.grammar_from_lark(writer.write(read_structural_tag(asked.text)))
        return LLMatcher.grammar_from_lark(_lark(asked, asked.text))


class GuidanceGrammar:
    """A compiled grammar: a matcher at the beginning, which answers copy, and whether it ``rewinds``."""

    def __init__(self, matcher: LLMatcher, *, rewinds: bool) -> None:
        self._matcher, self._rewinds = matcher, rewinds

    def begin(self) -> GuidanceMatcher:
        return RewindableGuidanceMatcher(self._matcher) if self._rewinds else GuidanceMatcher(self._matcher)


class GuidanceMatcher:
    """One answer's way through a grammar, from where ``start`` stands."""

    def __init__(self, start: LLMatcher) -> None:
        self._matcher = start.deep_copy()
        self._fault: str | None = None

    @property
    def finished(self) -> bool:
        return self._matcher.is_stopped()

    @property
    def fault(self) -> str | None:
        return self._fault

    def accept(self, ids: Sequence[int]) -> bool:
        self._matcher.consume_tokens(list(ids))
        return not self._failed()

    def fill(self, row: memoryview) -> None:
        mask = self._matcher.compute_bitmask()
        row.cast("B")[:] = bytes(row.nbytes) if self._failed() else mask[: row.nbytes].ljust(row.nbytes, b"\0")

    def _failed(self) -> bool:
        if self._fault is None and self._matcher.is_error():
            self._fault = f"the answer can't go on: {_shorten(self._matcher.get_error())}"
        return self._fault is not None


class RewindableGuidanceMatcher(GuidanceMatcher):
    """See ``lsv.grammars.grammar.RewindableMatcher``."""

    def __init__(self, start: LLMatcher) -> None:
        super().__init__(start)
        self._start = start
        self._ids: list[int] = []
        """The answer so far."""

    def accept(self, ids: Sequence[int]) -> bool:
        self._ids += ids
        return super().accept(ids)

    def advance(self, ids: Sequence[int]) -> int:
        taken = 0
        for token in ids:
            if self._matcher.is_stopped() or not self._matcher.try_consume_tokens([token]):
                break
            taken += 1
        self._ids += ids[:taken]
        return taken

    def rollback(self, count: int) -> None:
        del self._ids[len(self._ids) - count :]
        self._fault = None
        if not self._matcher.rollback(count):  # nothing can be taken back behind an error, such as a limit that was met
            self._matcher = self._start.deep_copy()
            self._matcher.consume_tokens(self._ids)


def _rewinds(matcher: LLMatcher, mask: bytes) -> bool:
    """Whether tokens can be taken back, of which ``mask`` allows the first: not where Lark counts them (``max_tokens``)
    or finds out late where a text ends (``stop``). The matcher is used up.
    """
    bits = int.from_bytes(mask, "little")
    matcher.consume_token((bits & -bits).bit_length() - 1)
    return bool(matcher.rollback(1))


class _Tokenizer:
    """The vocabulary in the form that llguidance asks for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = sorted(vocabulary.special)
        self.eos_token_id = vocabulary.eos[0]
        self.bos_token_id = None
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


# what a schema could turn on by itself (the key x-guidance) is all said here: lenient would pass over keywords
_EXACT = {
    "whitespace_pattern": WHITESPACE,
    "whitespace_flexible": True,
    "item_separator": ",",
    "key_separator": ":",
    "lenient": False,
    "coerce_one_of": False,
}


def _schema(asked: StructuredOutputsParams) -> str:
    options = {**_EXACT, "whitespace_pattern": asked.whitespace_pattern or WHITESPACE}
    try:
        schema = read_json(asked.text)
    except (ValueError, RecursionError) as cause:
        raise unfollowable(asked, f"it is not JSON: {cause}") from None
    return LLMatcher.grammar_from_json_schema(_rewritten(asked, schema), overrides=options)


def _nested_schema(asked: StructuredOutputsParams, schema: dict[str, Any] | bool) -> str:
    """A schema within a grammar."""
    return "%json " + json.dumps({**_rewritten(asked, schema), "x-guidance": _EXACT})


def _rewritten(asked: StructuredOutputsParams, schema: Any) -> dict[str, Any]:
    try:
        return rewrite(schema)
    except NotFollowed as cause:
        raise unfollowable(asked, str(cause)) from None
    except RecursionError:
        raise unfollowable(asked, "its schemas are nested too deeply") from None


def _lark(asked: StructuredOutputsParams, text: str) -> str:
    return rewrite_schemas(_converted(asked, text), lambda schema: _rewritten(asked, schema))


def _converted(asked: StructuredOutputsParams, text: str) -> str:
    """A grammar in Lark, which may be written in GBNF."""
    if "::=" not in text:
        return text
    if len(text) > MAX_CONVERTED:
        raise unfollowable(asked, f"a GBNF grammar of {len(text)} characters is over the limit of {MAX_CONVERTED}")
    try:
        found: str = any_to_lark(text)
    except Exception as cause:
        raise unfollowable(asked, f"it is not GBNF: {cause}") from None
    return found


def _shorten(message: str) -> str:
    if message.startswith("panic"):
        return "it is too large for llguidance: simplify it"
    return message.replace("<non-verbose/>", "").strip()[:_SHOWN]
