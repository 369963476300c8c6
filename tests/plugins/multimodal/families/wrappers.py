"""transformers' own answers about images."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image as PilImage

from lsv.media.processor import Image
from lsv_multimodal.families.wrapper.images import load_whole_processor
from lsv_multimodal.families.wrapper.places import find_row_token


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
        made = {name: each.float() if each.dtype == torch.bfloat16 else each for name, each in made.items()}
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
