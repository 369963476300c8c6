"""What an evaluation asks: files the user names, GSM8K's among them, or the held-out set that comes with a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lsv.offers import ModelAlias
from lsv.plugins.catalog import Catalog
from lsv.resolve.locate import default_model
from lsv.settings import Settings
from lsv_base.errors import ConfigError
from lsv_bench.eval import gsm8k
from lsv_bench.eval.questions import Question, digest, make_questions, read_questions, read_text
from lsv_bench.eval.result import Source

_OWN_QUESTIONS = 600


class Material(msgspec.Struct, frozen=True, kw_only=True):
    """Questions and a text, either of which may be empty, and where they came from.

    ``match`` is how answers are compared (``matching.MATCHES``).
    """

    questions: Sequence[Question] = ()
    text: str = ""
    match: str = "exact"
    asked: Source | None = None
    read: Source | None = None


def gather_material(settings: Settings, catalog: Catalog) -> Material:
    """The files of ``--questions`` and ``--text``; without either the model's own set, if it has one.

    ``num_questions`` is how many of a file are asked at most, and how many of an own set. Raises ``ConfigError``.
    """
    material = _gather(settings, catalog)
    return msgspec.structs.replace(material, match=settings["match"] or material.match)


def _gather(settings: Settings, catalog: Catalog) -> Material:
    count, text = settings["num_questions"], settings["text"]
    if settings["gsm8k"]:
        material = from_files(_ask_gsm8k(settings)[:count], settings["gsm8k"], text)
        return msgspec.structs.replace(material, match=gsm8k.MATCH)
    for name in ("shots", "shots_from"):
        if settings[name] is not None:
            raise ConfigError(f"{name} only applies to --gsm8k: other questions are asked unchanged", param=name)
    if settings["questions"] or text:
        asked = read_questions(settings["questions"])[:count] if settings["questions"] else []
        return from_files(asked, settings["questions"], text)
    name = settings["model"] or default_model(catalog)
    alias = next((alias for alias in catalog.offers(ModelAlias) if alias.name == name), None)
    if alias is not None and alias.held_out is not None:
        questions, text = alias.held_out(count or _OWN_QUESTIONS, settings["dataset_seed"])
        return describe(make_questions(questions, name), text, f"{name}, held out", f"{name}, held out")
    if settings["speed"]:
        return Material()
    raise ConfigError(
        f"{name} has no questions or text of its own: give --questions FILE.jsonl, --text FILE or --speed",
        param="questions",
    )


def _ask_gsm8k(settings: Settings) -> list[Question]:
    if settings["questions"]:
        raise ConfigError("give either --questions or --gsm8k, not both", param="gsm8k")
    shots = gsm8k.SHOTS if settings["shots"] is None else settings["shots"]
    return gsm8k.ask_problems(settings["gsm8k"], shots, settings["shots_from"])


def from_files(questions: Sequence[Question], asked: str | None, text: str | None) -> Material:
    """``asked`` and ``text`` are the files. Raises ``ConfigError`` for a text that can't be read or is empty."""
    content = read_text(text, "text") if text else ""
    if text and not content.strip():
        raise ConfigError(f"text {text} is empty", param="text")
    return describe(questions, content, asked or "", text or "")


def describe(questions: Sequence[Question], text: str, asked: str, read: str) -> Material:
    """Material with its digests; ``asked`` and ``read`` are what questions and text are called."""
    return Material(
        questions=questions,
        text=text,
        asked=_source(asked, len(questions), questions),
        read=_source(read, len(text.encode()), text),
    )


def _source(name: str, size: int, content: Any) -> Source | None:
    return Source(name=name, size=size, digest=digest(content)) if size else None
