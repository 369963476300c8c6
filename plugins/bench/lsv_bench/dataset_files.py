"""Prompts from files: ShareGPT-format JSON, and JSONL with a prompt or a conversation a line."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsv_base.errors import ConfigError
from lsv_bench.datasets import Conversation, Prompt, Sample

_CHARACTERS = 4
"""Of English text a token holds about that many characters."""
_LONGEST_REPLY = 1024


def sharegpt_samples(path: str, count: int, output_len: int | None, *, seed: int) -> list[Sample]:
    """First human turns of a ShareGPT-format file: a list of ``{"conversations": [{"from", "value"}, …]}``.

    As many tokens are generated as the reply in the file has, estimated from its characters (1 to 1,024), or
    ``output_len``. Conversations without a reply are left out unless ``output_len`` is given. Fewer conversations than
    ``count`` are used again. Raises ``ConfigError`` naming the file and the entry, or the line where it is no JSON.
    """
    entries = _read_json(path)
    if not isinstance(entries, list):
        raise _refusal(path, "it must hold a list of conversations")
    samples = [
        sample for number, entry in enumerate(entries) if (sample := _first_turn(path, number, entry, output_len))
    ]
    if not samples:
        raise _refusal(path, "it holds no conversation with a prompt and a reply")
    random.Random(seed).shuffle(samples)
    return _cycle(samples, count)


def custom_samples(path: str, count: int, output_len: int) -> list[Sample]:
    """A JSON object a line: ``{"prompt": text or token ids}`` or ``{"messages": […]}``, either with ``output_len``.

    Lines are used in their order, and again when there are fewer than ``count``. Empty lines are skipped. Raises
    ``ConfigError`` naming the file and the line.
    """
    samples: list[Sample] = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        sample = _custom_sample(f"{path}:{number}", line, output_len)
        if samples and isinstance(sample.prompt, Conversation) != isinstance(samples[0].prompt, Conversation):
            raise _refusal(f"{path}:{number}", "a file must hold prompts or messages, not both")
        samples.append(sample)
    if not samples:
        raise _refusal(path, "it holds no line")
    return _cycle(samples, count)


def _first_turn(path: str, number: int, entry: Any, output_len: int | None) -> Sample | None:
    try:
        turns = [str(turn["value"]) for turn in entry["conversations"]]
    except (KeyError, TypeError):
        raise _refusal(
            f"{path}, entry {number}", 'it must look like {"conversations": [{"from": "human", "value": text}, …]}'
        ) from None
    if not turns or not turns[0].strip():
        return None
    if output_len is not None:
        return Sample(turns[0], output_len)
    if len(turns) < 2:
        return None
    return Sample(turns[0], min(max(1, len(turns[1]) // _CHARACTERS), _LONGEST_REPLY))


def _custom_sample(place: str, line: str, output_len: int) -> Sample:
    try:
        entry = json.loads(line)
    except ValueError as cause:
        raise _refusal(place, f"it is no JSON: {cause}") from None
    if not isinstance(entry, dict):
        raise _refusal(place, 'it must be an object such as {"prompt": "Hello", "output_len": 32}')
    length = entry.get("output_len", output_len)
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise _refusal(place, f"output_len must be a whole number of at least 1, got {length!r}")
    return Sample(_custom_prompt(place, entry), length)


def _custom_prompt(place: str, entry: Mapping[str, Any]) -> Prompt:
    if ("prompt" in entry) == ("messages" in entry):
        raise _refusal(place, f"it must have either prompt or messages, got the keys {', '.join(entry) or 'none'}")
    if "messages" in entry:
        messages = entry["messages"]
        if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
            raise _refusal(place, 'messages must be a list of {"role": …, "content": …}')
        return Conversation(tuple(messages))
    prompt = entry["prompt"]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return tuple(prompt)
    raise _refusal(place, f"prompt must be a non-empty string or list of token ids, got {str(prompt)[:40]!r}")


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message


def _cycle(samples: Sequence[Sample], count: int) -> list[Sample]:
    return [samples[index % len(samples)] for index in range(count)]


def _read_json(path: str) -> Any:
    try:
        return json.loads(_read(path))
    except json.JSONDecodeError as cause:
        raise _refusal(f"{path}:{cause.lineno}", f"it is no JSON: {cause}") from None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise _refusal(path, str(cause)) from None


def _refusal(place: str, why: str) -> ConfigError:
    return ConfigError(f"dataset {place} can't be used: {why}", param="dataset_path")
