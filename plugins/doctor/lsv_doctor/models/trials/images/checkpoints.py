"""Tiny checkpoints of wrappers of transformers with their image processors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lsv_doctor.models.trials.images.cases import CASES, Case
from lsv_testing.tiny import draw_weights, write_tokenizer

FIRST = 259
"""The id of the first special token of a family."""


def wrapper_class(family: str) -> str:
    """The class of a case."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as NAMES

    return str(NAMES[CASES[family].kind or family])


def write(family: str, folder: Path) -> Any:
    """A tiny checkpoint of a family in ``folder``, and transformers' own model of it."""
    import transformers

    case = CASES[family]
    ids = {token: FIRST + number for number, token in enumerate(case.tokens)}
    torch.manual_seed(case.seed)
    make: Any = getattr(transformers, wrapper_class(family))
    config = transformers.CONFIG_MAPPING[case.kind or family](**_number(case.config, ids))
    model = make._from_config(config, dtype=torch.float32, attn_implementation="eager")
    draw_weights(model, 0.2)
    model.save_pretrained(folder)
    write_tokenizer(folder, more=case.tokens)
    _name_tokens(folder, case)
    pixels = getattr(transformers, f"{case.pixels}Pil", None) or getattr(transformers, case.pixels)
    pixels(**case.options).save_pretrained(folder)
    if case.processor:
        (folder / "processor_config.json").write_text(json.dumps(case.processor))
    return make.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def _number(value: Any, ids: Mapping[str, int]) -> Any:
    if isinstance(value, Mapping):
        return {key: _number(each, ids) for key, each in value.items()}
    if isinstance(value, list):
        return [_number(each, ids) for each in value]
    return ids.get(value, value) if isinstance(value, str) else value


TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for p in m['content'] %}{{ p['text'] if p['type'] == 'text' else 'IMAGE' }}{% endfor %}{% endif %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def _name_tokens(folder: Path, case: Case) -> None:
    file = folder / "tokenizer_config.json"
    settings = {**json.loads(file.read_text()), "extra_special_tokens": dict(case.named)}
    settings["chat_template"] = TEMPLATE.replace("IMAGE", case.shows or case.tokens[0])
    file.write_text(json.dumps(settings))
