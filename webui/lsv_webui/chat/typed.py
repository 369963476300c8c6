"""Text that the chat component shows as typed, although it renders Markdown, HTML and LaTeX."""

from __future__ import annotations

import html
import re

_BEGIN, _END = '<div class="lsv-typed">', "</div>"


def as_typed(text: str) -> str:
    """A block that shows the text unchanged. ``typed.js`` restores the text for editing and copying."""
    return f"{_BEGIN}{escape_marks(text)}{_END}"


def read_typed(shown: str) -> str:
    """The text of such a block; any other text is returned as it is."""
    if not (shown.startswith(_BEGIN) and shown.endswith(_END)):
        return shown
    return html.unescape(shown.removeprefix(_BEGIN).removesuffix(_END))


def escape_marks(text: str) -> str:
    """The text with all characters escaped that have a meaning in Markdown, HTML or LaTeX, for use in an element.

    Line breaks are escaped too, because an empty line would end the element for Markdown.
    """
    return re.sub(r"[!-/:-@\[-`{-~\t\n]", lambda mark: f"&#{ord(mark[0])};", text)
