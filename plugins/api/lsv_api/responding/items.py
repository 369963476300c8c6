"""From items to the messages of a chat, and from what the model wrote back to items."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lsv.media.content_parts import ContentPart
from lsv_api.http.failures import Unsupported
from lsv_api.records.requests import FunctionCall, Message, ToolCall
from lsv_api.responding.requests import ResponsesInputItem, ResponsesPart
from lsv_base.errors import BadRequest

_ROLES = ("user", "assistant", "system", "developer")
_INSTRUCTING = ("system", "developer")
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
_KINDS = (*_PREFIXES, "item_reference")
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
INPUT = "input"
"""The argument of a function that stands for a custom tool."""
_SEAL = "lsv1."
"""Begins ``encrypted_content`` that this server wrote."""


class Conversation(NamedTuple):
    """A chat, and where each of its messages came from."""

    messages: list[Message]
    origins: list[str]


def make_item_id(kind: str) -> str:
    return f"{_PREFIXES[kind]}_{secrets.token_hex(16)}"


def seal_thoughts(text: str) -> str:
    """Thoughts as a client keeps them to send them back. They are no secret: ``content`` shows them, too."""
    return _SEAL + base64.urlsafe_b64encode(text.encode()).decode()


def open_thoughts(sealed: str, where: str) -> str:
    """Raises ``BadRequest`` for thoughts that another server has encrypted."""
    try:
        if not sealed.startswith(_SEAL):
            raise ValueError(sealed[:8])
        return base64.b64decode(sealed.removeprefix(_SEAL), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise BadRequest(
            f"{where}.encrypted_content was not written by this server, which can't decrypt it; leave the item out",
            param=f"{where}.encrypted_content",
        ) from None


def seal_input(text: str) -> str:
    """The arguments with which a function is called that stands for a custom tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def open_input(arguments: str) -> str:
    """The input of a custom tool; arguments that were cut off are shown as they are."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    text = found.get(INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


def shown_name(namespace: str | None, name: str) -> str:
    """The name that the model sees for a function: the namespace comes first, if there is one."""
    return name if namespace is None else f"{namespace.rstrip('_')}__{name}"


def normalise_items(given: str | Sequence[ResponsesInputItem] | None) -> list[ResponsesInputItem]:
    """The input as items that have a type, an id and a list of parts. Raises ``BadRequest`` for wrong ones."""
    if given is None or isinstance(given, str):
        given = [] if given is None else [ResponsesInputItem(role="user", content=given)]
    return [_normalise(item, f"input[{index}]") for index, item in enumerate(given)]


def _normalise(item: ResponsesInputItem, where: str) -> ResponsesInputItem:
    kind = item.type or ("message" if item.role is not None else "item_reference")
    if kind not in _KINDS:
        raise Unsupported(
            f"{where}.type {kind[:64]!r} is not available on this server; it takes {', '.join(_KINDS)}",
            param=f"{where}.type",
        )
    _check_fields(item, kind, where)
    content = item.content
    if kind == "message":
        if item.role not in _ROLES:
            raise BadRequest(f"{where}.role must be one of {', '.join(_ROLES)}", param=f"{where}.role")
        if isinstance(content, str):
            spoken = item.role == "assistant"
            content = [ResponsesPart(type="output_text" if spoken else "input_text", text=content)]
    for part in content if isinstance(content, list) else ():
        _complete_part(part)
    if kind == "reasoning" and item.summary is None:
        item.summary = []
    id = item.id or make_item_id(kind)
    status = None if kind in ("item_reference", "reasoning") else item.status or "completed"
    return msgspec.structs.replace(item, type=kind, id=id, content=content, status=status)


def _complete_part(part: ResponsesPart) -> None:
    """Give a part the fields that clients expect when they list items."""
    if part.type == "output_text" and part.annotations is None:
        part.annotations = []
    if part.type == "input_image" and part.detail is None:
        part.detail = "auto"


_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "message": ("content",),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
    "item_reference": ("id",),
}


def _check_fields(item: ResponsesInputItem, kind: str, where: str) -> None:
    for name in _REQUIRED[kind]:
        if getattr(item, name) is None:
            raise BadRequest(f"{where}.{name} is required in an item of type {kind}", param=f"{where}.{name}")


def write_messages(items: Sequence[ResponsesInputItem], instructions: str | None, first: int = 0) -> Conversation:
    """The chat that items are. ``first`` items come from stored responses, and are called so in errors.

    Thoughts, text and calls that follow each other are one message of the assistant, as the model wrote them.
    """
    chat = Conversation([], [])
    if instructions:
        _add(chat, Message(role="system", content=instructions), "instructions")
    thoughts = ""
    for index, item in enumerate(items):
        where = f"input[{index - first}]" if index >= first else "previous_response_id"
        if item.type == "reasoning":
            thoughts += _thoughts_of(item, where)
            continue
        said = item.type in _CALLS or item.role == "assistant"
        _append(chat, item, where, thoughts if said else "")
        thoughts = ""
    return chat


def _add(chat: Conversation, message: Message, origin: str) -> None:
    chat.messages.append(message)
    chat.origins.append(origin)


def _append(chat: Conversation, item: ResponsesInputItem, where: str, thoughts: str) -> None:
    last = chat.messages[-1] if chat.messages else None
    if item.type in _OUTPUTS:
        message = Message(role="tool", tool_call_id=item.call_id, content=_content(item.output, f"{where}.output"))
        _add(chat, message, where)
    elif item.type in _CALLS:
        arguments = item.arguments if item.type == "function_call" else seal_input(item.input or "")
        call = ToolCall(
            id=item.call_id,
            function=FunctionCall(name=shown_name(item.namespace, item.name or ""), arguments=arguments),
        )
        if last is None or last.role != "assistant" or thoughts:
            last = Message(role="assistant", reasoning_content=thoughts or None)
            _add(chat, last, where)
        last.tool_calls = [*(last.tool_calls or ()), call]
    else:
        content = _content(item.content, f"{where}.content")
        if last is not None and _continues_instructions(chat, item, content):
            last.content = f"{last.content}\n\n{content}"
            return
        message = Message(role=item.role or "user", content=content, reasoning_content=thoughts or None)
        _add(chat, message, where)


def _continues_instructions(chat: Conversation, item: ResponsesInputItem, content: object) -> bool:
    """Whether a message goes on with ``instructions``: many templates take one system message alone."""
    return item.role in _INSTRUCTING and chat.origins == ["instructions"] and isinstance(content, str)


def _thoughts_of(item: ResponsesInputItem, where: str) -> str:
    """What an item of type reasoning says; summaries only where they are all that there is."""
    if isinstance(item.content, str):
        return item.content
    text = "".join(part.text or "" for part in item.content or ())
    if not text and item.encrypted_content:
        return open_thoughts(item.encrypted_content, where)
    return text or "\n\n".join(part.text or "" for part in item.summary or ())


def _content(given: str | list[ResponsesPart] | None, where: str) -> str | list[ContentPart | str]:
    """Content of a chat message. A single text is sent as such, as clients of chat completions send it."""
    if not isinstance(given, list):
        return given or ""
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(given)]
    if len(parts) == 1 and parts[0].type == "text":
        return parts[0].text or ""
    return list[ContentPart | str](parts)


def _part(part: ResponsesPart, where: str) -> ContentPart:
    if part.type in ("input_text", "output_text", "text", "refusal"):
        field = "refusal" if part.type == "refusal" else "text"
        return ContentPart(type="text", text=_given(getattr(part, field), f"{where}.{field}", part.type))
    if part.type == "input_image":
        if part.file_id is not None:
            raise Unsupported(
                f"{where}.file_id: there are no files on this server; send image_url", param=f"{where}.file_id"
            )
        return ContentPart(type="image_url", image_url=_given(part.image_url, f"{where}.image_url", part.type))
    if part.type == "input_audio":
        return ContentPart(type="input_audio", input_audio=_given(part.input_audio, f"{where}.input_audio", part.type))
    if part.type == "input_file":
        raise Unsupported(f"{where}: files can't be read on this server; send their text as input_text", param=where)
    raise BadRequest(
        f"{where}.type: there are no parts of type {part.type[:32]!r}; it is one of input_text, input_image, "
        "input_audio, output_text, refusal",
        param=f"{where}.type",
    )


def _given(value: Any, where: str, kind: str) -> Any:
    if value is None:
        raise BadRequest(f"{where} is required in a part of type {kind}", param=where)
    return value
