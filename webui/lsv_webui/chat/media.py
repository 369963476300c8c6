"""The media a model takes: what the page offers, how it describes them, what it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lsv_base.errors import BadRequest
from lsv_webui.api import Model

_ONE = {"image": "an image", "audio": "an audio file", "video": "a video"}
_MANY = {"image": "images", "audio": "audio", "video": "videos"}


def taken(model: Model) -> list[str]:
    """Kinds of files to offer for a model; all of them where the server does not say."""
    return [kind for kind in _ONE if model.takes(kind)]


def offered(model: Model) -> str:
    """The same for ``OFFER``: never empty, so that the first model is a change, too."""
    return ",".join(["text", *taken(model)])


OFFER = """offered => {
  const files = offered.split(',').slice(1);
  const sources = [...(files.length ? ['upload'] : []), ...(files.includes('audio') ? ['microphone'] : [])];
  return {__type__: 'update', sources, file_types: files.length ? files : ['image', 'audio', 'video']};
}"""
"""Runs in the browser: gives the message box the inputs a model takes; ``check`` refuses other files."""


def greeting(model: Model) -> str:
    """What an empty conversation shows."""
    kinds = [_ONE[kind] for kind in taken(model)]
    attach = f", or attach {_listed(kinds, 'or')}" if kinds else ""
    return (
        '<div class="lsv-greeting"><h1>What would you like to know?</h1>'
        f"<p>Ask a question{attach}. Conversations stay in this browser.</p></div>"
    )


def hint(model: Model) -> str:
    """A sentence about what a model takes; empty where the server does not say."""
    if model.modalities is None:
        return ""
    kinds = taken(model)
    if not kinds:
        return f"{model.name} takes text only"
    without = [_MANY[kind] for kind in _ONE if kind not in kinds]
    but = f", but no {_listed(without, 'or')}" if without else ""
    return f"{model.name} takes {_listed(['text', *(_MANY[kind] for kind in kinds)], 'and')}{but}"


def check(model: Model, kinds: Iterable[str]) -> None:
    """Raises ``BadRequest`` for files of a kind that the model does not take."""
    for kind in sorted(set(kinds) - set(taken(model))):
        raise BadRequest(f"{hint(model)}. Choose a model that takes {_MANY[kind]}, or ask without them in a new chat.")


def _listed(words: Sequence[str], link: str) -> str:
    *others, last = words
    return f"{', '.join(others)} {link} {last}" if others else last
