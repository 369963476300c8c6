"""Chat templates: from a conversation to the text a model was trained to continue.

Templates come with checkpoints, so they are foreign code: they run in jinja2's immutable sandbox, with the
environment that ``transformers`` documents for them ("Chat templates", writing your own).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lsv.errors import BadRequest, CheckpointError

Message = Mapping[str, Any]
ContentFormat = Literal["auto", "string", "openai"]
"""How a template gets contents: as text, as a list of parts, or as it reads them."""

_PARTS_LOOP = re.compile(r"\bin\s+\w+(\.content|\[\s*['\"]content['\"]\s*\])")
_TAKES_TEXT = re.compile(r"\bis\s+(not\s+)?(string|iterable)\b")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_DEFAULT, _WITH_TOOLS = "default", "tool_use"
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


class ChatTemplates:
    """The chat templates of a tokenizer by name, and the special tokens they may write."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._compiled: dict[str, jinja2.Template] = {}
        self._environment = _make_environment()

    def __bool__(self) -> bool:
        return bool(self._templates)

    def has(self, name: str) -> bool:
        """Whether a template is one of the tokenizer's own, by its name."""
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
    ) -> str:
        """The conversation as text. ``template`` is a template's text, or the name of one of several.

        Raises ``BadRequest`` where there is no template, or where the template refuses or can't digest its input.
        """
        if not messages:
            raise BadRequest("messages must not be empty", param="messages")
        source = self.source(template, with_tools=tools is not None)
        context = {**self._special_tokens, **(kwargs or {})}
        context |= {
            "messages": [_prepare(message, source, content_format) for message in messages],
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._compile(source).render(context)
        except MemoryError:
            raise
        except jinja2.TemplateError as cause:
            raise BadRequest(f"the chat template refused the messages: {cause}", param="messages") from cause
        except Exception as cause:
            raise BadRequest(
                f"the chat template failed on the messages: {type(cause).__name__}: {cause}", param="messages"
            ) from cause

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

    def _compile(self, source: str) -> jinja2.Template:
        """Compiled templates of the tokenizer are kept; one that came with a request is not."""
        if source in self._compiled:
            return self._compiled[source]
        compiled = self._environment.from_string(source)
        if source in self._templates.values():
            self._compiled[source] = compiled
        return compiled


def is_name(template: str) -> bool:
    """Whether what was given as a template is only a name of one."""
    return _NAME.fullmatch(template) is not None


def read_templates(directory: Path, declared: object) -> dict[str, str]:
    """The templates of a tokenizer folder by name; files win over what tokenizer_config.json ``declared``."""
    file = directory / "chat_template.jinja"
    templates = {_DEFAULT: file.read_text(encoding="utf-8")} if file.is_file() else {}
    for extra in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[extra.stem] = extra.read_text(encoding="utf-8")
    if templates:
        return templates
    if isinstance(declared, str):
        return {_DEFAULT: declared}
    pairs: list[tuple[object, object]] = list(declared.items()) if isinstance(declared, dict) else []
    for entry in declared if isinstance(declared, list) else ():
        pairs.append((entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None))
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise CheckpointError(f"{directory}: each of several chat templates must have a name and a template, as texts")
    return {str(name): str(text) for name, text in pairs}


def _prepare(message: Message, source: str, content_format: ContentFormat) -> dict[str, Any]:
    """A message as templates expect it: fields that are None left out, reasoning under the names in use.

    Unless the format is said, content given as parts becomes text where the template does not go through parts itself,
    and content given as text becomes a part where it does nothing else.
    """
    prepared = {name: value for name, value in message.items() if value is not None}
    reasoning = next((prepared[name] for name in _REASONING_NAMES if name in prepared), None)
    if reasoning is not None:
        prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
    content, takes_text, takes_parts = prepared.get("content"), *_find_formats(source, content_format)
    if isinstance(content, list | tuple) and not takes_parts:
        prepared["content"] = _flatten(content)
    elif isinstance(content, str) and not takes_text:
        prepared["content"] = [{"type": "text", "text": content}]
    return prepared


def _find_formats(source: str, content_format: ContentFormat) -> tuple[bool, bool]:
    """Whether a template takes contents as text, and as parts."""
    if content_format != "auto":
        return content_format == "string", content_format == "openai"
    loops = _PARTS_LOOP.search(source) is not None
    return not loops or _TAKES_TEXT.search(source) is not None, loops


def _flatten(parts: Sequence[Any]) -> str:
    """One text of all parts. Where texts have marks of media in them, these are in their places already: as many parts
    with the same mark add nothing, the last ones first.
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
            raise BadRequest("content: every part must be a text for this model's chat template", param="messages")
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
