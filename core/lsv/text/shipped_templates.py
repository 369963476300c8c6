"""Chat templates that lsv has, and what ``--chat-template`` names."""

from __future__ import annotations

import functools
import logging
from collections.abc import Container, Mapping
from pathlib import Path

from lsv.text.chat_template import is_name
from lsv_base.errors import ConfigError

log = logging.getLogger(__name__)

TEMPLATES = Path(__file__).with_name("templates")
"""Chat templates that lsv has, by the names of their files."""
_OF_EXAMPLES: Mapping[str, str] = {
    "template_baichuan": "baichuan2",
    "template_chatml": "chatml",
    "template_falcon": "falcon",
    "template_falcon_180b": "falcon_180b",
    "template_llava": "llava",
    "tool_chat_template_hermes": "hermes",
    "tool_chat_template_llama3.1_json": "llama3_json",
    "tool_chat_template_llama3.2_json": "llama3_json",
    "tool_chat_template_mistral": "mistral",
    "tool_chat_template_mistral3": "mistral_v7",
    "tool_chat_template_mistral_parallel": "mistral_parallel",
}
"""Files of vLLM's examples, which launch lines name, and lsv's own templates of the same purpose, without suffixes."""
_NAMED_ALIKE = ("template_", "tool_chat_template_")


def read_template(given: str) -> str:
    """A chat template given as text, as the path of a file, or by the name of a template that lsv has.

    The name of a file of vLLM's examples means lsv's template of the same purpose where there is no such file. Any
    other word is returned as it is, as the name of one of the tokenizer's templates.
    """
    if "{" in given or "\n" in given:
        return given
    file = Path(given).expanduser()
    if not file.is_file():
        if file.suffix == ".jinja" and (own := _OF_EXAMPLES.get(file.stem)):
            _tell(given, own)
            file = TEMPLATES / f"{own}.jinja"
        elif is_name(given):
            file = TEMPLATES / f"{given}.jinja"
            if not file.is_file():
                return given
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(
            f"chat template {given!r} is neither a template nor a file that can be read: {cause}; "
            f"lsv itself has {_own_names()}{_examples(file)}",
            param="chat_template",
        ) from cause


@functools.cache
def _tell(given: str, own: str) -> None:
    """Once in a process, which reads the option in several places."""
    log.warning("chat template %s: there is no such file; lsv's own template %s is used instead", given, own)


def _own_names() -> str:
    return ", ".join(sorted(file.stem for file in TEMPLATES.glob("*.jinja")))


def _examples(file: Path) -> str:
    """What to do about a file that is named like one of vLLM's examples."""
    if not file.stem.startswith(_NAMED_ALIKE):
        return ""
    names = ", ".join(f"{name}.jinja" for name in sorted(_OF_EXAMPLES))
    return (
        f", and takes these files of vLLM's examples for those of the same purpose: {names}. Without --chat-template "
        "lsv uses the tokenizer's own template, and describes tools in the prompt if that has none"
    )


def check_name(template: str, own: Container[str]) -> None:
    """Raises ``ConfigError`` for a name from ``read_template`` that is not one of the tokenizer's ``own``."""
    if is_name(template) and template not in own:
        raise ConfigError(
            f"chat template {template!r} is neither a file nor one of the tokenizer's; lsv itself has {_own_names()}",
            param="chat_template",
        )
