"""Whether a class answers about pictures as transformers does, on checkpoints with an image processor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lsv import LLM, SamplingParams
from lsv.cli.context import CommandContext
from lsv.media.families import find_processor, load_processor
from lsv.media.processor import Image
from lsv.request.media import Array
from lsv.resolve import resolve
from lsv_doctor.models.trials.images.cases import CASES
from lsv_doctor.models.trials.images.checkpoints import write
from lsv_doctor.models.trials.subject import Finding, Subject, Unable
from lsv_testing.tiny import tiny
from lsv_testing.tiny_seeing import SEEING

_NEW_TOKENS = 6
_SIZES = ((60, 40), (33, 90), (28, 28))
"""Of the pictures of prompts, width and height."""
_ROWS = ("image_token_id", "image_token_index")
_KINDS = "mm_token_type_ids"
_BESIDE = ("ids", "span")
"""What lsv's processor of wrappers adds to what transformers' makes of a picture."""
_OF_THE_PROMPT = ("fuyu", "mllama", "paligemma")
"""Families whose own processor makes more of a prompt with a picture than an image processor does."""

Inputs = Mapping[str, Any]
"""What a picture becomes, by the names of the forward of transformers' class."""


def try_images(subject: Subject) -> Finding | None:
    """Greedy answers to prompts with a picture each, and to one without; None without such a checkpoint."""
    made = _make(subject)
    if made is None:
        return None
    folder, model, mark = made
    prepare = _processor(folder) if subject.order.family in CASES else _image_processor(folder, model)
    prompts = [(f"see {mark} here", _draw(*size)) for size in _SIZES] + [("nothing to see", None)]
    for number, (ids, found) in enumerate(_ask(folder, prompts)):
        shown = prompts[number][1]
        expected = _ask_transformers(model, ids, {} if shown is None else prepare(shown))
        if found != expected:
            return Finding("wrong", f"prompt {number} of {len(prompts)}: {found}, not {expected}")
    return Finding("yes")


def _make(subject: Subject) -> tuple[Path, Any, str] | None:
    """A checkpoint of the class with its processor, transformers' model of it, and what stands for a picture."""
    folder, family = subject.folder / "images", subject.order.family
    folder.mkdir(exist_ok=True)
    if (case := CASES.get(family)) is not None:
        try:
            return folder, write(family, folder), case.shows or case.tokens[0]
        except ImportError as error:
            raise Unable(str(error).strip().partition(". ")[0]) from error
    if (seeing := SEEING.get(family)) is None:
        return None
    if family in _OF_THE_PROMPT:
        raise Unable("the check has no processor of transformers' that makes inputs of the prompt as well")
    tiny(family, folder, tokenizer=True)
    make: Any = type(subject.model)
    model = make.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return folder, model, seeing.items["image"]


def _ask(folder: Path, prompts: Sequence[tuple[str, Any]]) -> list[tuple[list[int], list[int]]]:
    """The tokens of each prompt, those of its picture among them, and of the answer."""
    params = SamplingParams(temperature=0.0, max_tokens=_NEW_TOKENS, ignore_eos=True)
    given: list[Any] = [text if shown is None else _with_image(text, shown) for text, shown in prompts]
    with LLM(str(folder), dtype="float32", max_model_len=512, max_num_batched_tokens=512) as llm:
        answers = [one.checked() for one in llm.generate(given, params, use_tqdm=False)]
    return [([*one.prompt_token_ids], [*one.outputs[0].token_ids]) for one in answers]


def _with_image(text: str, shown: Any) -> dict[str, Any]:
    return {"prompt": text, "multi_modal_data": {"image": shown}}


@torch.inference_mode()
def _ask_transformers(model: Any, ids: Sequence[int], inputs: Inputs) -> list[int]:
    """A greedy answer to the same tokens, and to what its own processor makes of the picture."""
    prompt = torch.tensor([list(ids)])
    given = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), **inputs}
    if "image_grid_thw" in given and _KINDS in inspect.signature(model.forward).parameters:
        row = next(getattr(model.config, name) for name in _ROWS if hasattr(model.config, name))
        given[_KINDS] = (prompt == row).int()
    try:
        written = model.generate(**given, do_sample=False, max_new_tokens=_NEW_TOKENS, eos_token_id=None)
    except Exception as error:  # some families' own processors make inputs of the text, too
        raise Unable(f"transformers' own class does not take the picture by itself: {error!r:.200}") from error
    return written[0, len(ids) :].tolist()  # type: ignore[no-any-return]


def _processor(folder: Path) -> Callable[[Any], Inputs]:
    """The whole processor of transformers, through lsv's processor of wrappers."""
    context = CommandContext.open([])
    config = resolve(context.settings([str(folder), "--dtype", "float32"]), context.plugins)
    found = load_processor(config, context.plugins.catalog, find_processor(config, context.plugins.catalog))

    def prepare(shown: Any) -> Inputs:
        made = found.process(Image(np.asarray(shown)), {}).inputs
        return {name: _to_tensor(each) for name, each in made.items() if name not in _BESIDE}

    return prepare


def _to_tensor(array: Array) -> torch.Tensor:
    assert isinstance(array.data, bytes), "it has not left this process"
    return torch.frombuffer(bytearray(array.data), dtype=getattr(torch, array.dtype)).view(array.shape)


def _image_processor(folder: Path, model: Any) -> Callable[[Any], Inputs]:
    from transformers import AutoImageProcessor

    load: Any = AutoImageProcessor.from_pretrained
    processor, takes = (
        load(str(folder), backend="pil", local_files_only=True),
        inspect.signature(model.forward).parameters,
    )

    def prepare(shown: Any) -> Inputs:
        made = processor(images=[shown], return_tensors="pt")
        return {name: made[name] for name in takes if name in made}

    return prepare


def _draw(width: int, height: int) -> Any:
    from PIL import Image

    generator = torch.Generator().manual_seed(width)
    return Image.fromarray(torch.randint(256, (height, width, 3), generator=generator, dtype=torch.uint8).numpy())
