"""Parts of a message's content, as the OpenAI API names them, and the media they refer to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from lsv.request.media import Modality
from lsv_base.errors import BadRequest


class MediaLink(msgspec.Struct, kw_only=True):
    """Where a part's media are: a ``data:``, ``http(s):`` or ``file:`` URL. ``detail`` changes nothing here."""

    url: str
    detail: str | None = None


class InputAudio(msgspec.Struct, kw_only=True):
    """Audio in base64. ``format`` is not needed: the content tells it."""

    data: str
    format: str | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message's content; ``type`` says which field holds it."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | MediaLink | None = None
    audio_url: str | MediaLink | None = None
    video_url: str | MediaLink | None = None
    input_audio: InputAudio | None = None


class InlinePart(ContentPart, kw_only=True):
    """A part whose media came in the request, in base64, and were not parsed with the rest of it."""

    payload: bytes


class Reference(msgspec.Struct, frozen=True):
    """Media that a part refers to: by ``url``, or ``base64`` itself. ``where`` names the part in errors."""

    modality: Modality
    where: str
    url: str = ""
    base64: str | bytes = ""


_LINKS: Mapping[str, Modality] = {"image_url": "image", "audio_url": "audio", "video_url": "video"}
NO_MARKS: Mapping[Modality, str] = MappingProxyType({})
_TEXTS = ("text", "refusal")
KNOWN = ("text", *_LINKS, "input_audio", "refusal")


def read_part(part: ContentPart | str, where: str) -> str | Reference:
    """A part's text, or the media it refers to. Raises ``BadRequest`` for an unknown type or an empty part."""
    if isinstance(part, str):
        return part
    if part.type not in KNOWN:
        raise BadRequest(
            f"{where}.type: unknown type {part.type[:32]!r}; expected one of {', '.join(KNOWN)}",
            param=f"{where}.type",
        )
    if isinstance(part, InlinePart):
        return Reference(_LINKS.get(part.type, "audio"), where, base64=part.payload)
    value = getattr(part, part.type)
    if value is None:
        raise BadRequest(f"{where}.{part.type} is required in a part of that type", param=f"{where}.{part.type}")
    if part.type in _TEXTS:
        return str(value)
    if isinstance(value, InputAudio):
        return Reference("audio", where, base64=value.data)
    return Reference(_LINKS[part.type], where, url=value if isinstance(value, str) else value.url)


def refusal(reference: Reference, modalities: Sequence[Modality], wrapper: str = "") -> BadRequest:
    """The error for media that a model does not take; ``modalities`` are those it does, ``wrapper`` as in
    ``EngineConfig``.
    """
    takes = ", ".join(("text", *modalities))
    why = f": only the language model of {wrapper} is served" if wrapper else ""
    return BadRequest(
        f"{reference.where}: this model takes {takes}, but no {reference.modality}{why}", param=reference.where
    )


def convert_part(part: Any, where: str) -> ContentPart | str:
    """A part given as a mapping, or a text. Raises ``BadRequest``."""
    if isinstance(part, str):
        return part
    try:
        return msgspec.convert(part, ContentPart)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{where}: {str(error).replace('`', '')}", param=where) from None


def template_content(parts: list[str | Reference], marks: Mapping[Modality, str] = NO_MARKS) -> list[dict[str, str]]:
    """Content as chat templates know it: a list of typed parts.

    Those of media have their ``mark``, if they have one: what stands for them where a template takes texts alone.
    """
    return [{"type": "text", "text": part} if isinstance(part, str) else _shown(part, marks) for part in parts]


def _shown(part: Reference, marks: Mapping[Modality, str]) -> dict[str, str]:
    mark = marks.get(part.modality)
    return {"type": part.modality} if mark is None else {"type": part.modality, "mark": mark}
