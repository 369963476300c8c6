"""From blocks of Anthropic's to parts of chat messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lsv.media.content_parts import ContentPart, InlinePart, MediaLink
from lsv_api.http.failures import Unsupported
from lsv_api.messages.records import MessagesBlock, MessagesCitations, MessagesInlineSource, MessagesSource
from lsv_base.errors import BadRequest

Parts = list[ContentPart | str]

_TAKEN = "text, image, document, search_result, thinking, tool_use and tool_result"


def read_parts(block: MessagesBlock, where: str) -> Iterator[ContentPart]:
    """The parts of a block that holds texts and images. Raises ``BadRequest`` for another block."""
    if block.type == "text":
        yield _text(_required(block.text, "text", where))
    elif block.type == "image":
        yield _image(block.source, where)
    elif block.type == "document":
        yield from _document(block, where)
    elif block.type == "search_result":
        yield _search_result(block, where)
    elif block.type == "tool_reference":
        yield _text(f"The tool {_required(block.tool_name, 'tool_name', where)} is available.")
    else:
        raise Unsupported(
            f"{where}.type: blocks of type {block.type[:64]!r} are not available here; this server takes {_TAKEN}",
            param=f"{where}.type",
        )


def read_content(content: str | Sequence[MessagesBlock] | None, where: str) -> str | Parts:
    """Texts and images; a text alone is a text, as chat completions have it."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part for index, block in enumerate(content) for part in read_parts(block, f"{where}[{index}]")]
    return plain(parts)


def plain(parts: Sequence[ContentPart]) -> str | Parts:
    """Parts of a message; one that is a text alone as a text."""
    if not parts:
        return ""
    return parts[0].text or "" if len(parts) == 1 and parts[0].type == "text" else list(parts)


def _text(text: str) -> ContentPart:
    return ContentPart(type="text", text=text)


def _required(value: str | None, name: str, where: str) -> str:
    if value is None:
        raise BadRequest(f"{where}.{name} is required in a block of that type", param=f"{where}.{name}")
    return value


def _image(source: MessagesSource | str | None, where: str) -> ContentPart:
    if not isinstance(source, MessagesSource):
        raise BadRequest(f"{where}.source is required in a block of that type", param=f"{where}.source")
    if isinstance(source, MessagesInlineSource):
        return InlinePart(type="image_url", payload=source.payload)
    if source.type == "base64":
        data = _required(source.data, "source.data", where)
        return ContentPart(type="image_url", image_url=MediaLink(url=f"data:{source.media_type};base64,{data}"))
    if source.type == "url":
        return ContentPart(type="image_url", image_url=MediaLink(url=_required(source.url, "source.url", where)))
    raise _elsewhere(source, f"{where}.source", "send the image as base64, or its url")


def _document(block: MessagesBlock, where: str) -> Iterator[ContentPart]:
    """A document between lines that name it. Its images stand where they are."""
    source = block.source
    if not isinstance(source, MessagesSource):
        raise BadRequest(f"{where}.source is required in a block of that type", param=f"{where}.source")
    if isinstance(block.citations, MessagesCitations) and block.citations.enabled:
        raise Unsupported(f"{where}.citations: this server can't cite; leave it out", param=f"{where}.citations")
    if source.type == "text":
        inner: str | Parts = _required(source.data, "source.data", where)
    elif source.type == "content":
        inner = read_content(source.content, f"{where}.source.content")
    else:
        raise _elsewhere(source, f"{where}.source", "send the document's text, with type text")
    head = f"<document{_attribute('title', block.title)}>\n" + (f"{block.context}\n" if block.context else "")
    if isinstance(inner, str):
        yield _text(f"{head}{inner}\n</document>")
        return
    yield _text(head.rstrip("\n"))
    yield from (_text(part) if isinstance(part, str) else part for part in inner)
    yield _text("</document>")


def _search_result(block: MessagesBlock, where: str) -> ContentPart:
    if isinstance(block.citations, MessagesCitations) and block.citations.enabled:
        raise Unsupported(f"{where}.citations: this server can't cite; leave it out", param=f"{where}.citations")
    texts = [
        _required(inner.text, "text", f"{where}.content[{index}]")
        for index, inner in enumerate(() if isinstance(block.content, str | None) else block.content)
    ]
    source = block.source if isinstance(block.source, str) else None
    named = _attribute("title", block.title) + _attribute("source", source)
    inner = block.content if isinstance(block.content, str) else "\n".join(texts)
    return _text(f"<search_result{named}>\n{inner}\n</search_result>")


def _attribute(name: str, value: str | None) -> str:
    return f' {name}="{value}"' if value else ""


def _elsewhere(source: MessagesSource, where: str, instead: str) -> Unsupported:
    return Unsupported(
        f"{where}: sources of type {source.type[:32]!r} are not available here; {instead}", param=f"{where}.type"
    )
