"""A GGUF file's vocabulary as tokenizer.json and tokenizer_config.json. Imports no torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from lsv.text.vocabularies.sentencepiece import Pieces, build_bpe, surround
from lsv_base.errors import CheckpointError
from lsv_quant.gguf.ends import ends_by_text

log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_CHARACTERS = 1024
"""Of a token. How it may be merged is tried at each of its characters."""
_NORMAL, _UNKNOWN, _CONTROL, _USER = 1, 2, 3, 4
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CASED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CASED}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CASED}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Style(NamedTuple):
    """How byte-level text is split before it is merged: by ``first`` one after another, then by ``pattern``, or like
    GPT-2 without one.
    """

    pattern: str = ""
    first: tuple[str, ...] = ()
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    begin: bool = False


_LLAMA3 = Style(_CONTRACTIONS + r"\p{N}{1,3}" + _REST, ignore_merges=True, begin=True)
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2 = Style(_CONTRACTIONS + r"\p{N}" + _REST, nfc=True)
_DIGITS = Style(digits=True)
_WORDS = r"[一-龥぀-ゟ゠-ヿ]+"
_V3 = Style(_DEEPSEEK3, (r"\p{N}{1,3}", _WORDS))
_STYLES = {
    # what llama.cpp falls back to; files that name no style were written before there were styles
    "default": Style(r"[0-9][0-9][0-9]", (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "granite-docling"), Style()),
    **dict.fromkeys(("gigachat", "a.x-4.0", "mellum"), Style()),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "qwen35": Style(_QWEN35, nfc=True),
    "deepseek-r1-qwen": _QWEN2._replace(nfc=False),
    **dict.fromkeys(("stablelm2", "hunyuan", "solar-open", "grok-2"), _QWEN2._replace(nfc=False)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"), _DIGITS
    ),
    **dict.fromkeys(("falcon3", "falcon-h1", "lfm2", "pixtral", "midm-2.0"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), _LLAMA3._replace(ignore_merges=False, begin=False)),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), Style(_O200K)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _V3),
    "deepseek-coder": Style(r"\p{N}", (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+")),
    "bloom": Style(r" ?[^(\s|.,!?…。，、।۔،)]+"),
    "seed-coder": Style(_CONTRACTIONS + r"\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"),
    "falcon": Style(r"[0-9][0-9][0-9]", (r"[\p{P}$+<=>^~|`]+", _GPT2)),
    "tekken": Style(_TEKKEN, ignore_merges=True, begin=True),
}
_NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


class Vocabulary:
    """``tokenizer.ggml.*`` of a file's metadata."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.tokens: list[str] = self.list_of("tokens", str, [])
        self.kinds: list[int] = [*self.list_of("token_type", int, [_NORMAL] * len(self.tokens))]
        self.scores: list[float] = self.list_of("scores", float, [0.0] * len(self.tokens))
        if (longest := max(map(len, self.tokens), default=0)) > _MOST_CHARACTERS:
            raise CheckpointError(f"the GGUF file has a token of {longest} characters; models have none", param="model")
        if not len(self.tokens) == len(self.kinds) == len(self.scores):
            raise CheckpointError(
                f"the GGUF file has {len(self.tokens)} tokens, {len(self.kinds)} kinds and {len(self.scores)} scores",
                param="model",
            )
        for end in ends_by_text(self.tokens, self.kinds):
            self.kinds[end] = _CONTROL  # some files call it an ordinary token, which text would be merged into

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def list_of(self, key: str, kind: type[T], default: list[T]) -> list[T]:
        """A list of one kind. Raises ``CheckpointError`` for anything else."""
        found = self.get(key, default)
        if not isinstance(found, list) or not all(type(item) is kind for item in found):
            raise CheckpointError(
                f"the GGUF file's {key} of its tokenizer must be a list of {kind.__name__}", param="model"
            )
        return found

    @property
    def ids(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    def of(self, *kinds: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind in kinds]

    def named(self, name: str) -> str | None:
        """The text of the special token ``bos``, ``eos``, ``unknown`` or ``padding``."""
        number = self.get(f"{name}_token_id")
        return self.tokens[number] if type(number) is int and 0 <= number < len(self.tokens) else None


def write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    """The tokenizer's files; for an unknown kind a warning instead of tokenizer.json: ``--tokenizer`` names another."""
    vocabulary = Vocabulary(metadata)
    kind, style = vocabulary.get("model"), vocabulary.get("pre") or "default"
    if kind == "gpt2" and style == "default":
        log.warning(
            "the GGUF file does not say how its tokenizer splits text: as llama.cpp does then, which may not be the "
            "model's own way; another tokenizer is named with --tokenizer"
        )
    make = _maker(kind, style)
    if make is not None:
        try:
            tokenizer = make(vocabulary)
        except CheckpointError:
            raise
        except Exception as cause:  # tokenizers raises bare Exception
            raise CheckpointError(f"the GGUF file's tokenizer can't be built: {cause}", param="model") from cause
        tokenizer.save(str(folder / "tokenizer.json"))
    else:
        log.warning("the GGUF file's tokenizer (%s, %s) is not known: name another one with --tokenizer", kind, style)
    settings: dict[str, Any] = {name: vocabulary.named(key) for key, name in _NAMED.items()}
    settings["chat_template"] = _templates(metadata)
    known = {name: value for name, value in settings.items() if value is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(known), encoding="utf-8")


def _maker(kind: Any, style: Any) -> Callable[[Vocabulary], Tokenizer] | None:
    """What builds a tokenizer of this kind; None for one that is not known."""
    if kind == "gpt2" and isinstance(style, str) and style in _STYLES:
        return partial(_byte_level, style=_STYLES[style])
    return _sentence_piece if kind == "llama" else None


def _templates(metadata: Mapping[str, Any]) -> Any:
    """The chat template, or a list of named ones if there are several."""
    default, names = metadata.get("tokenizer.chat_template"), metadata.get("tokenizer.chat_templates", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError("the names of the GGUF file's chat templates must be texts", param="model")
    named = {name: metadata.get(f"tokenizer.chat_template.{name}") for name in names}
    if not all(isinstance(text, str | None) for text in (default, *named.values())):
        raise CheckpointError("the GGUF file's chat templates must be texts", param="model")
    if not any(named.values()):
        return default
    every = {"default": default, **named}
    return [{"name": name, "template": template} for name, template in every.items() if template]


def _byte_level(vocabulary: Vocabulary, style: Style) -> Tokenizer:
    """Byte-level BPE (Radford et al. 2019)."""
    ids = vocabulary.ids
    pairs = (tuple(merge.split(" ", 1)) for merge in vocabulary.list_of("merges", str, []))
    merges = [pair for pair in pairs if len(pair) == 2 and {*pair, "".join(pair)} <= ids.keys()]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=style.ignore_merges))
    if style.nfc:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if style.digits else []
    patterns = (*style.first, style.pattern) if style.pattern else ()
    steps += [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not style.pattern))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return _finish(tokenizer, vocabulary, begin=style.begin)


def _sentence_piece(vocabulary: Vocabulary) -> Tokenizer:
    pieces = Pieces(vocabulary.tokens, vocabulary.scores, vocabulary.kinds)
    tokenizer = build_bpe(pieces, front=bool(vocabulary.get("add_space_prefix", True)))
    return _finish(tokenizer, vocabulary, begin=True)


def _finish(tokenizer: Tokenizer, vocabulary: Vocabulary, *, begin: bool) -> Tokenizer:
    """Tokens that are never split, and those around a text."""
    first = vocabulary.named("bos") if vocabulary.get("add_bos_token", begin) else None
    last = vocabulary.named("eos") if vocabulary.get("add_eos_token", False) else None
    surround(tokenizer, Pieces(vocabulary.tokens, vocabulary.scores, vocabulary.kinds), first, last)
    return tokenizer
