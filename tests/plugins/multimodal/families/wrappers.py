"""Tiny checkpoints of wrappers of transformers with their processors, and transformers' own answers about images."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image as PilImage

from lsv.media.processor import Image
from lsv.testing.tiny import draw_weights, write_tokenizer
from lsv_multimodal.families.wrapper.images import load_whole_processor
from lsv_multimodal.families.wrapper.places import find_row_token

from .wrapper_cases import CASES, Case

FIRST = 259
"""The id of the first special token of a family."""


def write(kind: str, folder: Path, case: Case | None = None) -> Any:
    """A tiny checkpoint of a family in ``folder``, and transformers' own model of it."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    case = case or CASES[kind]
    ids = {token: FIRST + number for number, token in enumerate(case.tokens)}
    names = {**auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, **auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    torch.manual_seed(case.seed)
    make: Any = getattr(transformers, names[kind])
    config = transformers.CONFIG_MAPPING[kind](**_number(case.config, ids))
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


class Reference:
    """transformers' own processor and model over a checkpoint."""

    def __init__(self, folder: Path, model: Any) -> None:
        self.model, self.inputs = model, {}  # type: ignore[var-annotated]
        config = json.loads((folder / "config.json").read_text())
        self.row = find_row_token(config)
        self.takes = inspect.signature(model.forward).parameters
        self.processor = load_whole_processor(folder, config)

    def read(self, number: int, text: str, pictures: Sequence[Image]) -> Any:
        """A prompt with its pictures, as transformers' processor makes it."""
        images = [PilImage.fromarray(picture.pixels) for picture in pictures]
        if images:
            made = self.processor(images=images, text=[text], return_tensors="pt")
        else:
            ids = self.processor.tokenizer(text, return_tensors="pt")["input_ids"]
            made = {"input_ids": ids}
        made = {name: each for name, each in made.items() if each is not None}
        kept = ("attention_mask", "token_type_ids")
        self.inputs[number] = {name: each for name, each in made.items() if name not in kept}
        return self.inputs[number]

    @torch.inference_mode()
    def logits(self, number: int, ids: Sequence[int]) -> torch.Tensor:
        """Of the prompt and what came after it."""
        given = dict(self.inputs[number])
        behind = len(ids) - given["input_ids"].shape[1]
        given["input_ids"] = torch.tensor([list(ids)])
        given.pop("mm_token_type_ids", None)
        if "image_grid_thw" in given or "mm_token_type_ids" in self.takes:
            kinds = (self.inputs[number]["input_ids"] == self.row).int()
            given["mm_token_type_ids"] = torch.nn.functional.pad(kinds, (0, behind))
        ones = torch.ones_like(given["input_ids"])
        found: torch.Tensor = self.model(**given, attention_mask=ones, use_cache=False).logits[0]
        return found

    @torch.inference_mode()
    def generate(self, number: int, new: int) -> list[int]:
        """Greedy tokens behind a prompt, by transformers' own loop."""
        given = dict(self.inputs[number])
        given.pop("mm_token_type_ids", None)
        if "image_grid_thw" in given or "mm_token_type_ids" in self.takes:
            given["mm_token_type_ids"] = (given["input_ids"] == self.row).int()
        ones, count = torch.ones_like(given["input_ids"]), given["input_ids"].shape[1]
        made = self.model.generate(**given, attention_mask=ones, do_sample=False, max_new_tokens=new, eos_token_id=None)
        return made[0, count:].tolist()  # type: ignore[no-any-return]
