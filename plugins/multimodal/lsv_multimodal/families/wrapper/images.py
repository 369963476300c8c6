"""Images as the processor of a wrapper of transformers prepares them, and the tokens that it writes for one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage

from lsv.media.processor import Content, Processed
from lsv.resolve.locate import read_object
from lsv_base.errors import BadRequest, CheckpointError
from lsv_multimodal.families.image_processor import check_image, check_options, load_image_processor, pack
from lsv_multimodal.families.wrapper.places import GRID, find_placeholder, find_row_token, stands_by_axes

_TEXTS = frozenset(("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"))
"""What a processor makes of the text."""
_WRITTEN = ("image_placeholder_token", "image_token")
"""What processors call the token that they replace."""
_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


class WrapperProcessor:
    """The whole processor, with text that is nothing but the placeholder of an image."""

    rate = 0

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._processor = load_whole_processor(folder, config)
        backend = [each.__name__ for each in type(self._processor.image_processor).__mro__]
        self._form = "pt" if "TorchvisionBackend" in backend else "np"
        self._row, self._by_axes = find_row_token(config), stands_by_axes(config)
        placeholder = find_placeholder(folder, config)
        self._text = self._processor.tokenizer.convert_ids_to_tokens(placeholder)
        written = next((found for key in _WRITTEN if (found := getattr(self._processor, key, None))), self._text)
        if written != self._text:
            raise CheckpointError(
                f"config.json says that an image is {self._text}, but the processor replaces {written}: mend "
                "image_token_id, or image_token in processor_config.json"
            )

    def process(self, content: Content, options: Mapping[str, Any]) -> Processed:
        check_options(options)
        image = PilImage.fromarray(check_image(content))
        made = self._processor(
            images=[image], text=[self._text], return_tensors=self._form, text_kwargs={"add_special_tokens": False}
        )
        tokens = np.asarray(made["input_ids"]).reshape(-1).astype(np.int64)
        if self._row not in tokens:
            raise BadRequest("the processor of this model writes no token for this image")
        inputs = {name: _array(name, value) for name, value in made.items() if name not in _TEXTS and value is not None}
        first, last = self._find_rows(tokens) if GRID in inputs and self._by_axes else (0, len(tokens) - 1)
        inputs |= {"ids": tokens, "span": np.array([first, last], np.int64)}
        packed = {name: pack(each) for name, each in inputs.items()}
        return Processed(packed, tuple(tokens.tolist()), first, last - first + 1)

    def _find_rows(self, tokens: npt.NDArray[np.int64]) -> tuple[int, int]:
        """The first and the last row of a grid. Elsewhere all tokens of an image have rows: a wrapper may embed what
        stands around and between the tower's, too.
        """
        rows = np.flatnonzero(tokens == self._row)
        return int(rows[0]), int(rows[-1])


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value.float() if str(getattr(value, "dtype", "")) == "torch.bfloat16" else value)
    if array.dtype == object:
        raise CheckpointError(f"the processor makes {name} in a form that is not an array")
    return array.astype(np.float32) if array.dtype == np.float64 else array


class Absent:
    """Stands for what prepares other media, whose settings some processors keep."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def load_whole_processor(folder: Path, config: Mapping[str, Any]) -> Any:
    """The processor that a checkpoint names, with its image processor and tokenizer, and nothing for other media.

    Raises ``CheckpointError`` where there is none.
    """
    from transformers import AutoTokenizer

    kind = _find_class(folder, config)
    parts = {
        name: load_image_processor(folder) if name == "image_processor"
        else AutoTokenizer.from_pretrained(str(folder), local_files_only=True) if name == "tokenizer"
        else Absent()
        for name in kind.get_attributes()
    }  # fmt: skip
    if not {"image_processor", "tokenizer"} <= parts.keys():
        raise CheckpointError(f"{kind.__name__} prepares images in a way that is not known here")
    takes = inspect.signature(kind.__init__).parameters
    given = read_object(folder / "processor_config.json") or {}
    named = {name: value for name, value in given.items() if name in takes and name not in parts}

    class Partial(kind):  # type: ignore[misc, valid-type]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            """Processors of other media need packages of their own; here they have no part."""

    return Partial(**parts, **named)


def _find_class(folder: Path, config: Mapping[str, Any]) -> Any:
    """The class of the processor, whatever packages it wants for media that it is not given here."""
    named = (str((read_object(folder / name) or {}).get("processor_class") or "") for name in _FILES)
    own = str(config.get("model_type"))
    for name in (*named, _known_processors().get(own)):
        for family in _families(own, str(name or "")):
            module = _import_processing(family)
            if isinstance(found := getattr(module, str(name), None), type):
                if not getattr(module, "num2words", True):
                    module.num2words = str  # it writes the times of videos
                return found
    raise CheckpointError(f"{folder}: no file names the processor_class, and transformers has none for this model_type")


def _import_processing(family: str) -> Any:
    """The module of transformers that defines a family's processor; None where there is none."""
    place = f"transformers.models.{family}"
    try:
        return import_module(f"{place}.processing_{family}")
    except ModuleNotFoundError as cause:
        if cause.name != "torchvision":
            return None
    # all that it takes of the module for torchvision is how large images become, which that for PIL says, too
    wanted = f"{place}.image_processing_{family}"
    sys.modules[wanted] = import_module(f"{place}.image_processing_pil_{family}")
    try:
        return import_module(f"{place}.processing_{family}")
    finally:
        del sys.modules[wanted]


def _families(own: str, name: str) -> list[str]:
    """The modules of transformers that may define a processor of a name, for a model_type."""
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    alike = (kind for kind, known in _known_processors().items() if known == name)
    kinds = (own, *alike, name.removesuffix("Processor").lower())
    return [model_type_to_module_name(kind) for kind in kinds] if name else []


def _known_processors() -> Mapping[str, str]:
    """The class that transformers usually has, by model_type."""
    known: Any = import_module("transformers.models.auto.processing_auto")
    return dict(known.PROCESSOR_MAPPING_NAMES)
