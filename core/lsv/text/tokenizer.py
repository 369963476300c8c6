"""Text to token ids and back: a checkpoint's fast tokenizer, its special tokens and its chat templates.

Reads the files itself (``tokenizers`` alone, no transformers): loading costs 0.04 s and 16 MB.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from lsv.config import EngineConfig
from lsv.request.params import Side
from lsv.resolve.recommended import read_recommended
from lsv.text.added_tokens import NAMED, add_missing, merge_settings, text_of
from lsv.text.backends import find_backend, read_json
from lsv.text.chat_template import ChatTemplates, ContentFormat, read_templates
from lsv.text.code_backend import Backend
from lsv.text.frame import Frame, find_frame
from lsv.text.pairs import encode_pairs
from lsv.text.shipped_templates import check_name, read_template
from lsv.text.spelling import find_spelling
from lsv_base.errors import BadRequest, CheckpointError, ConfigError
from lsv_base.processes.confinement.terms import Mode

log = logging.getLogger(__name__)

_METASPACE = "▁"
_PADDING = 256
"""Rows of padding that any embedding may have, however small it is."""
_UNKNOWN = {"return_tensors", "return_dict", "padding", "truncation", "max_length", "return_assistant_tokens_mask"}
"""Arguments of the same method in transformers that are not followed."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Tokenizer:
    """One checkpoint's tokenizer. Encoding and decoding are safe from several threads.

    ``eos_ids`` are all ids that end an answer; ``sampling_defaults`` the ``SamplingParams`` fields that
    generation_config.json recommends.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_ids: Sequence[int] = (),
        templates: Mapping[str, str] | None = None,
        sampling_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._chat = ChatTemplates(templates or {}, special_tokens or {})
        self._spelling = find_spelling(backend)
        self._texts: dict[int, str] = {}
        self._bytes: dict[int, bytes] = {}
        added = backend.get_added_tokens_decoder()
        self.added_texts = {token: entry.content for token, entry in added.items()}
        """Tokens that were added to the vocabulary, special ones among them."""
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.special_tokens = dict(special_tokens or {})
        self.vocab_size: int = max(backend.get_vocab_size(), max(added, default=-1) + 1)
        self.bos_id = self._named_id("bos_token")
        own_eos = self._named_id("eos_token")
        self.eos_ids = tuple(dict.fromkeys([*(() if own_eos is None else (own_eos,)), *eos_ids]))
        self.sampling_defaults = dict(sampling_defaults or {})
        self.plain_texts = PlainTexts(self._plain_text)

    @classmethod
    def load(
        cls,
        place: str | Path,
        *,
        chat_template: str | None = None,
        stop_tokens: Sequence[str] = (),
        generation: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        remote_code: Mode | None = None,
    ) -> Tokenizer:
        """Read a tokenizer's folder, or of that the tekken.json which is named, though there is a tokenizer.json, too.
        ``chat_template`` (text, or the path of a file) replaces the folder's own. Of ``stop_tokens`` those that there
        are end an answer, too.

        ``generation`` is another folder of a generation_config.json, empty for none, and ``sampling`` is laid over what
        that recommends. ``remote_code`` says how a process is confined that runs a tokenizer's own code; None runs
        none. Raises ``CheckpointError`` where the folder holds no usable tokenizer.
        """
        folder = _folder_of(place)
        settings = merge_settings(folder)
        special_tokens = _named_tokens(settings)
        found = find_backend(Path(place), settings, remote_code)
        if found.extensible:
            add_missing(found.backend, folder, settings)
        templates = read_templates(folder, settings.get("chat_template"))
        if not templates and found.template:
            templates = {"default": read_template(found.template)}
        if chat_template is not None:
            text = read_template(chat_template)
            if text == chat_template:
                check_name(text, templates)
            templates = {"default": templates.get(text, text)}
        return cls(
            found.backend,
            special_tokens={**found.named, **special_tokens},
            eos_ids=(*read_eos_ids(folder), *_ids_of(stop_tokens, found.backend)),
            templates=templates,
            sampling_defaults={**read_recommended(folder if generation is None else generation), **(sampling or {})},
        )

    @classmethod
    def of(cls, config: EngineConfig) -> Tokenizer:
        """The tokenizer of an engine. Raises ``CheckpointError``."""
        return cls.load(
            config.tokenizer,
            stop_tokens=config.stop_tokens,
            generation=config.generation,
            sampling=config.sampling,
            remote_code=config.remote_code,
        )

    @cached_property
    def longest(self) -> int:
        """Most characters that a token stands for."""
        return max(map(len, self._backend.get_vocab()), default=1)

    @cached_property
    def frame(self) -> Frame:
        """The special tokens that the tokenizer adds around a text."""
        return find_frame(self.encode, self.bos_id)

    @cached_property
    def special_texts(self) -> frozenset[str]:
        """Special tokens, spelt out."""
        return frozenset(map(self.token_text, self.special_ids))

    @property
    def has_chat_template(self) -> bool:
        return bool(self._chat)

    def has_template(self, name: str) -> bool:
        """Whether a chat template is one of the tokenizer's own, by its name."""
        return self._chat.has(name)

    def check_template(self, template: str) -> None:
        """Raises ``ConfigError`` for the name of a template that the tokenizer does not have."""
        if not self._chat.has(template):
            check_name(template, ())

    def template_source(self, template: str | None, *, with_tools: bool = False) -> str:
        """The text of the template that ``render_chat`` takes; see ``ChatTemplates.source``."""
        return self._chat.source(template, with_tools=with_tools)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text, without the interpreter's lock while they are found, so that other threads go on.

        Raises ``BadRequest`` for text that is not valid Unicode (lone surrogates).
        """
        try:
            text.encode()
        except UnicodeEncodeError as cause:
            raise BadRequest(f"the text is not valid Unicode: {cause.reason} at character {cause.start}") from None
        # a batch of one: encoding a single text keeps the lock
        (found,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = found.ids
        return ids

    def encode_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], keep: int | None = None, side: Side = "right"
    ) -> list[tuple[list[int], int]]:
        """The ids of each pair of texts, and where the second text begins, 0 if the tokenizer does not say.

        A single first text is paired with all second texts. If a pair has more than ``keep`` tokens, the longer text
        loses its end, or its beginning if ``side`` is left. Raises ``BadRequest``.
        """
        return encode_pairs(self._backend, firsts, seconds, keep, side)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Bytes that are not (yet) UTF-8 become U+FFFD, ids without a token nothing.

        Raises ``BadRequest`` for numbers that can be no id.
        """
        try:
            # as in encode: a batch, because a single sequence keeps the lock
            text: str
            (text,) = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError) as cause:
            raise BadRequest(f"token ids must be integers from 0 to {self.vocab_size - 1}: {cause}") from None
        return text

    def token_text(self, token: int) -> str:
        """One token's text as it stands amid others: leading spaces and special tokens are shown."""
        if token not in self._texts:
            self._texts[token] = self._spell(token)
        return self._texts[token]

    def token_bytes(self, token: int) -> bytes:
        """One token's bytes, which may be a part of a character; those of its text where the decoder is not known."""
        if token not in self._bytes:
            self._bytes[token] = self._bytes_of(token)
        return self._bytes[token]

    @property
    def trims_first(self) -> bool:
        """Whether the first token of a text may be spelt in another way than amid others."""
        return self._spelling is None or self._spelling.trims_first

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        content_format: ContentFormat = "auto",
        continue_final_message: bool = False,
    ) -> str:
        """A conversation as text, to be encoded without adding special tokens; see ``ChatTemplates.render``."""
        return self._chat.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            documents=documents,
            template=template,
            kwargs=kwargs,
            content_format=content_format,
            continue_final_message=continue_final_message,
        )

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> str | list[int]:
        """A conversation as ids, or as text unless ``tokenize``, with the arguments that transformers' users know.

        Other arguments are variables of the template. Raises ``BadRequest``, also for arguments that would change ids.
        """
        if wrong := _UNKNOWN & variables.keys():
            raise BadRequest(f"apply_chat_template gives ids or text: leave {', '.join(sorted(wrong))} out")
        text = self.render_chat(
            conversation, add_generation_prompt=add_generation_prompt, tools=tools, template=chat_template,
            kwargs=variables, continue_final_message=continue_final_message,
        )  # fmt: skip
        return self.encode(text, add_special_tokens=False) if tokenize else text

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's own token for the end of an answer; ``eos_ids`` has all of them."""
        return self._named_id("eos_token")

    @property
    def bos_token_id(self) -> int | None:
        return self.bos_id

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        found: int | None = None if token is None else self._backend.token_to_id(token)
        return found

    def _spell(self, token: int) -> str:
        piece: str | None = self._backend.id_to_token(token)
        if piece is None:
            return ""
        if token in self.special_ids:
            return piece
        if self._spelling is not None:
            return self._spelling.spell(piece).decode(errors="replace")
        text = self.decode([token], skip_special_tokens=False)
        # sentencepiece decoders drop the space in front of the first token
        return f" {text}" if piece.startswith(_METASPACE) and not text.startswith(" ") else text

    def _bytes_of(self, token: int) -> bytes:
        piece: str | None = self._backend.id_to_token(token)
        if piece is None or token in self.special_ids or self._spelling is None:
            return self.token_text(token).encode()
        return self._spelling.spell(piece)

    def _plain_text(self, token: int) -> str | None:
        piece = self._backend.id_to_token(token) if 0 <= token < self.vocab_size else None
        if piece is None or token in self.added_texts or self._spelling is None or self._spelling.is_part(piece):
            return None
        try:
            text = self._spelling.spell(piece).decode()
        except UnicodeDecodeError:
            return None
        return None if not text or text.endswith("\N{REPLACEMENT CHARACTER}") else text


class PlainTexts(dict[int, "str | None"]):
    """By token: its text, where neighbours have no say in it; None where they have, and for added tokens.

    Filled as tokens are asked for. See ``Tokenizer.trims_first`` for the first token of a text.
    """

    def __init__(self, spell: Callable[[int], str | None]) -> None:
        super().__init__()
        self._spell = spell

    def __missing__(self, token: int) -> str | None:
        text = self[token] = self._spell(token)
        return text


class NoTokenizer(Tokenizer):
    """Stands in where a user works with token ids alone: it knows the ids that end an answer, and no text."""

    def __init__(self, place: str | Path) -> None:
        super().__init__(tokenizers.Tokenizer(tokenizers.models.BPE()), eos_ids=read_eos_ids(_folder_of(place)))

    @cached_property
    def frame(self) -> Frame:
        return Frame()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        raise BadRequest("the tokenizer was not loaded (skip_tokenizer_init): give prompts as token ids")

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return ""


def open_tokenizer(config: EngineConfig, *, skip: bool) -> Tokenizer:
    """Open the tokenizer of an engine, or a stand-in if ``skip``.

    Raises ``CheckpointError``, or ``ConfigError`` for the tokenizer of another model.
    """
    if skip:
        return NoTokenizer(config.tokenizer)
    tokenizer = Tokenizer.of(config)
    if config.vocab_size is not None:
        _check_size(tokenizer.vocab_size, config.vocab_size, config.tokenizer)
    return tokenizer


def _check_size(tokens: int, rows: int, place: str) -> None:
    """Raises ``ConfigError`` if the tokenizer has far fewer or more ``tokens`` than the model has ``rows``."""
    if tokens < rows - max(rows // 10, _PADDING) or tokens > rows + rows // 100:
        raise ConfigError(
            f"the tokenizer {place} has {tokens} tokens, and the model has {rows}: it is from another model. Name the "
            "right one with --tokenizer, or use token ids with --skip-tokenizer-init",
            param="tokenizer",
        )
    if tokens > rows:
        log.warning("the tokenizer has %d tokens, the model only %d: prompts with higher ids are refused", tokens, rows)
    elif tokens < rows:
        log.info("the tokenizer has %d tokens, the model %d: the rest is padding or reserved", tokens, rows)


def _folder_of(place: str | Path) -> Path:
    path = Path(place)
    return path.parent if path.is_file() else path


def read_eos_ids(folder: Path) -> tuple[int, ...]:
    """The ids that end an answer, from generation_config.json and config.json."""
    found: list[int] = []
    for file in ("generation_config.json", "config.json"):
        ids = read_json(folder / file).get("eos_token_id")
        found += ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(type(token) is int for token in found):
        raise CheckpointError(f"{folder}: eos_token_id must be a token id or a list of them, got {found}")
    return tuple(dict.fromkeys(found))


def _ids_of(tokens: Iterable[str], backend: Backend) -> list[int]:
    """The ids of the tokens that are in the vocabulary."""
    found = map(backend.token_to_id, tokens)
    return [token for token in found if token is not None]


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """The texts of bos_token and the other named tokens."""
    found: dict[str, str] = {}
    for name in NAMED:
        text = text_of(settings.get(name))
        if text is not None and _SURROGATE.search(text):
            raise CheckpointError(f"the tokenizer's {name} is {text!r}, which is not valid Unicode")
        if text is not None:
            found[name] = text
    return found
