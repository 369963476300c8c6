"""Turns uploads and messages into the API's content parts, with data URLs."""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv_base.errors import BadRequest
from lsv_webui.chat.conversation import Chat, Message, ToolCall

_KINDS = {"image_url": "image", "input_audio": "audio", "video_url": "video"}


def upload(path: str) -> Path:
    """An uploaded file. Raises ``BadRequest`` for any other path: browsers send these back and may send anything."""
    from gradio.utils import get_upload_folder

    found, folder = Path(path).resolve(), Path(get_upload_folder()).resolve()
    if folder not in found.parents or not found.is_file():
        raise BadRequest(f"{Path(path).name} is no longer on the server. Attach it again.")
    return found


def kind(path: str | Path) -> str:
    """``"image"``, ``"audio"`` or ``"video"``. Raises ``BadRequest`` for other files."""
    found = _type(path).partition("/")[0]
    if found not in ("image", "audio", "video"):
        raise BadRequest(f"{Path(path).name} is not an image, audio or video file.")
    return found


def content_part(path: str) -> dict[str, Any]:
    """A file as a content part of a message. Raises ``BadRequest``."""
    file, modality = upload(path), kind(path)
    data = base64.b64encode(file.read_bytes()).decode("ascii")
    if modality == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": file.suffix[1:].lower() or "wav"}}
    name = f"{modality}_url"
    return {"type": name, name: {"url": f"data:{_type(path)};base64,{data}"}}


def request_messages(chat: Chat, system: str = "") -> list[dict[str, Any]]:
    """The conversation as the API takes it, without unanswered questions other than the last.

    Lost files of earlier questions are left out, as the chat shows; raises ``BadRequest`` for the last question's.
    """
    told = [{"role": "system", "content": system}] if system.strip() else []
    followed = zip(chat.messages, [*chat.messages[1:], None], strict=True)
    kept = [message for message, following in followed if _is_sent(message, following)]
    asked = next((message for message in reversed(kept) if message.role == "user"), None)
    return [*told, *(said for message in kept for said in _request_message(message, last=message is asked))]


def sent_kinds(messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """The kinds of files in messages for the API."""
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return {_KINDS[part["type"]] for part in parts if part["type"] in _KINDS}


def _is_sent(message: Message, following: Message | None) -> bool:
    if message.role == "assistant":
        return bool(message.text) or message.ran
    return following is None or (following.role == "assistant" and (bool(following.text) or following.ran))


def _request_message(message: Message, *, last: bool) -> list[dict[str, Any]]:
    """A message, and the results of its calls behind it."""
    files = [path for path in message.files if last or _is_there(path)]
    if message.ran:
        called = [_call(call) for call in message.calls]
        results = [{"role": "tool", "tool_call_id": call.id, "content": call.result} for call in message.calls]
        return [{"role": message.role, "content": message.text or None, "tool_calls": called}, *results]
    if not files:
        return [{"role": message.role, "content": message.text}]
    text = [{"type": "text", "text": message.text}] if message.text else []
    return [{"role": message.role, "content": [*map(content_part, files), *text]}]


def _call(call: ToolCall) -> dict[str, Any]:
    """A call as the API takes it back: one whose arguments are not JSON is sent without them."""
    try:
        arguments = call.arguments if isinstance(json.loads(call.arguments), dict) else "{}"
    except ValueError:
        arguments = "{}"
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _is_there(path: str) -> bool:
    try:
        return upload(path).is_file()
    except BadRequest:
        return False


def _type(path: str | Path) -> str:
    return mimetypes.guess_type(str(path))[0] or ""
