"""Prompts for real models: chats, languages, emoji, code, and the beginnings of long documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHATS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "List the numbers from 1 to 5 and their squares.",
    "Translate 'good evening' into Spanish.",
    "Why is the sky blue? 🌈",
)
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "You answer in one word."},
    {"role": "user", "content": "The opposite of hot?"},
    {"role": "assistant", "content": "Cold."},
    {"role": "user", "content": "And of  early?\n"},
]
TEXTS = {
    "french": "La mer est salée parce que",
    "german": "Über den Wolken muß die Freiheit",
    "russian": "Столица России — это город",
    "chinese": "中国的首都是",
    "japanese": "日本で一番高い山は",
    "arabic": "عاصمة مصر هي مدينة",
    "hindi": "भारत की राजधानी",
    "emoji": "🎉🎂🥳 I ❤️ 🍕 and 👨‍👩‍👧‍👦 🏳️‍🌈",
    "invisible": "Zero\u200bwidth, e\u0301, \ufeffa mark and \u202eback",
    "counting": "1, 2, 3, 4, 5,",
    "python": 'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "sql": "SELECT name, COUNT(*) FROM users\nWHERE ",
    "tabs": "x = [1,2,3]\r\nprint(x[::-1])\r\n\t\t# tabs\tand   spaces\r\n",
    "story": "Once upon a time, there was a little girl who",
}
DOCUMENTS = {"short document": ("models.md", 200), "document": ("build.md", 700), "long document": ("build.md", 1500)}
"""Files of llama.cpp's docs, and how many of their first tokens make a prompt."""
CALIBRATION = (
    "android.md", "autoparser.md", "docker.md", "function-calling.md", "llguidance.md", "multi-gpu.md", "multimodal.md",
    "speculative.md",
)  # fmt: skip
"""Files that weights are fitted to. Perplexity is measured on another one."""


def conversations() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for number, question in enumerate(CHATS):
        yield f"chat {number}", [{"role": "user", "content": question}]
    yield "conversation", CONVERSATION


def read_document(texts: Path, file: str) -> str:
    return (texts / file).read_text(encoding="utf-8")


def read_calibration(texts: Path) -> str:
    return "\n".join(read_document(texts, file) for file in CALIBRATION)
