"""Chat templates: from a conversation to the text a model was trained to continue.

Templates come with checkpoints, so they are foreign code: they run in jinja2's immutable sandbox, with the
environment that ``transformers`` documents for them ("Chat templates", writing your own).
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lsv.text.message_forms import MessageForms
from lsv_base.errors import BadRequest, CheckpointError
from lsv_base.untrusted.files import read_text

log = logging.getLogger(__name__)

Message = Mapping[str, Any]
ContentFormat = Literal["auto", "string", "openai"]
"""The form of contents for a template: text, a list of parts, or whatever the template reads."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_KEPT = 8
"""Size of the cache of compiled templates."""


class ChatTemplates:
    """The chat templates of a tokenizer by name, and the special tokens they may write."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._loaded: dict[str, _Loaded] = {}
        self._environment = _make_environment()

    def __bool__(self) -> bool:
        return bool(self._templates)

    def has(self, name: str) -> bool:
        """Whether the tokenizer has a template of this name."""
        return name in self._templates

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        template: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        content_format: ContentFormat = "auto",
        continue_final_message: bool = False,
    ) -> str:
        """The conversation as text. ``template`` is a template's text, or the name of one of several.

        With ``continue_final_message`` the text ends where the last message's content does.
        Raises ``BadRequest`` if there is no template, or if the template fails or refuses its input.
        """
        if not messages:
            raise BadRequest("messages must not be empty", param="messages")
        mark = f"Q{secrets.token_hex(8)}" if continue_final_message else ""
        if mark:
            messages = [*messages[:-1], _mark_end(messages[-1], mark)]
        try:
            loaded = self._load(self.source(template, with_tools=tools is not None))
            context = {
                **self._special_tokens,
                **(kwargs or {}),
                "messages": [_prepare(message, loaded.forms, content_format) for message in messages],
                "tools": tools,
                "documents": documents,
                "add_generation_prompt": add_generation_prompt,
            }
            text = loaded.template.render(context)
        except (MemoryError, BadRequest):
            raise
        except jinja2.TemplateError as cause:
            raise BadRequest(f"the chat template refused the messages: {cause}", param="messages") from cause
        except Exception as cause:
            raise BadRequest(
                f"the chat template failed on the messages: {type(cause).__name__}: {cause}", param="messages"
            ) from cause
        return _cut_at(text, mark) if mark else text

    def source(self, template: str | None, *, with_tools: bool = False) -> str:
        """The text of the template that ``render`` takes. Raises ``BadRequest`` where there is none."""
        if template is not None:
            return self._templates.get(template, template)
        if with_tools and _WITH_TOOLS in self._templates:
            return self._templates[_WITH_TOOLS]
        if _DEFAULT in self._templates:
            return self._templates[_DEFAULT]
        if self._templates:
            raise BadRequest(
                f"the tokenizer has several chat templates and no default; name one of: {', '.join(self._templates)}",
                param="chat_template",
            )
        raise BadRequest(
            "the tokenizer has no chat template and none was given: start with --chat-template, or use completions",
            param="messages",
        )

    def _load(self, source: str) -> _Loaded:
        """The compiled template and the forms that it reads, cached."""
        found = self._loaded.pop(source, None) or self._compile(source)
        self._loaded[source] = found
        for oldest in list(self._loaded)[:-_KEPT]:
            self._loaded.pop(oldest, None)
        return found

    def _compile(self, source: str) -> _Loaded:
        template = self._environment.from_string(source)
        plain = {**self._special_tokens, "documents": None, "add_generation_prompt": False}

        def try_to_render(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> str | None:
            try:
                return template.render({**plain, "messages": messages, "tools": tools})
            except MemoryError:
                raise
            except Exception:
                return None

        return _Loaded(template, MessageForms(try_to_render))


class _Loaded(NamedTuple):
    template: jinja2.Template
    forms: MessageForms


def is_name(template: str) -> bool:
    """Whether ``template`` is the name of a template, not its text."""
    return _NAME.fullmatch(template) is not None


def read_templates(directory: Path, declared: object) -> dict[str, str]:
    """The templates of a tokenizer folder by name.

    As in transformers, a processor's own template comes first, then template files, then ``declared``, the entry of
    tokenizer_config.json.
    """
    own = _read_processor_template(directory)
    if own is not None:
        if declared is not None and declared != own:
            log.info("%s: using the processor's chat template instead of the one in tokenizer_config.json", directory)
        declared = own
    elif templates := _read_files(directory):
        return templates
    if isinstance(declared, str):
        return {_DEFAULT: declared}
    pairs: list[tuple[object, object]] = list(declared.items()) if isinstance(declared, dict) else []
    for entry in declared if isinstance(declared, list) else ():
        pairs.append((entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None))
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise CheckpointError(
            f"{directory}: each of several chat templates must have a name and a template, both strings"
        )
    return {str(name): str(text) for name, text in pairs}


def _read_files(directory: Path) -> dict[str, str]:
    """The templates in their own files."""
    file = directory / "chat_template.jinja"
    templates = {_DEFAULT: read_text(file)} if file.is_file() else {}
    for extra in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[extra.stem] = read_text(extra)
    return templates


def _read_processor_template(directory: Path) -> object:
    """The chat template in a processor's JSON files; None for a folder without a processor."""
    from lsv.text.backends import (
        read_json,
    )  # imported here because the process that renders templates needs no tokenizer

    config = directory / "processor_config.json"
    if not (config.is_file() or (directory / "preprocessor_config.json").is_file()):
        return None
    found = (read_json(file).get("chat_template") for file in (config, directory / "chat_template.json"))
    return next((template for template in found if template is not None), None)


def _prepare(message: Message, forms: MessageForms, content_format: ContentFormat) -> dict[str, Any]:
    """A message as the template reads it.

    Its content and the arguments of its calls get the forms that the template shows. Fields that are None and empty
    lists of calls are left out. Reasoning gets all names that templates use.
    """
    prepared = {name: value for name, value in message.items() if value is not None}
    reasoning = next((prepared[name] for name in _REASONING_NAMES if name in prepared), None)
    if reasoning is not None:
        prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
    if calls := prepared.pop("tool_calls", None):
        prepared["tool_calls"] = [_prepare_call(call, forms) for call in calls]
    content = message.get("content")
    if calls and not content:
        given = {"content": None if content is None else ""} if "content" in message else {}
        return forms.without_content({**prepared, **given})
    if isinstance(content, str | list | tuple):
        prepared["content"] = _form_content(content, forms, str(message.get("role")), content_format)
    return prepared


def _form_content(content: Any, forms: MessageForms, role: str, content_format: ContentFormat) -> Any:
    """A content as text or as parts, by ``content_format`` or by what the template reads for this role."""
    if content_format == "auto":
        wanted = forms.content(role, content)
    else:
        wanted = "text" if content_format == "string" else "parts"
    if wanted == "parts":
        return [{"type": "text", "text": content}] if isinstance(content, str) else content
    return content if isinstance(content, str) else _flatten(content)


def _prepare_call(call: Any, forms: MessageForms) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    return {**call, "function": {**function, "arguments": forms.arguments(function.get("arguments"))}}


def _mark_end(message: Message, mark: str) -> dict[str, Any]:
    """A message whose text ends in ``mark`` and a space. The space disappears if the template trims texts."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return {**message, "content": f"{content or ''}{mark} "}
    texts = [index for index, part in enumerate(content) if isinstance(part, Mapping) and "text" in part]
    if not texts:
        raise BadRequest("continue_final_message needs text in the last message", param="continue_final_message")
    parts = list(content)
    parts[texts[-1]] = {**parts[texts[-1]], "text": f"{parts[texts[-1]]['text']}{mark} "}
    return {**message, "content": parts}


def _cut_at(text: str, mark: str) -> str:
    """The rendered prompt up to the mark, so that the answer goes on from there."""
    before, found, after = text.rpartition(mark)
    if not found:
        raise BadRequest(
            "continue_final_message: this chat template changes the last message: leave it out",
            param="continue_final_message",
        )
    return before if after.startswith(" ") else before.rstrip()


def _flatten(parts: Sequence[Any]) -> str:
    """All parts joined to one text.

    If texts contain marks of media, that many media parts with the same mark add no further marks, the last parts
    first.
    """
    read = [(part.get("text"), part.get("mark")) if isinstance(part, Mapping) else (part, None) for part in parts]
    written = "\n".join(text for text, _ in read if isinstance(text, str))
    there = Counter({mark: written.count(mark) for text, mark in read if text is None and mark})
    texts: list[str] = []
    for text, mark in reversed(read):
        if text is None and there[mark] > 0:
            there[mark] -= 1
            continue
        said = mark if text is None else text
        if not isinstance(said, str):
            raise BadRequest(
                "content: this model's chat template takes text parts only; leave the other parts out", param="messages"
            )
        texts.append(said)
    return "\n".join(reversed(texts))


class _Generation(Extension):
    """``{% generation %} … {% endgeneration %}`` marks the assistant's own text for training; here it only renders."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes HTML, which models have not seen."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
