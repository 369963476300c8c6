"""Wrappers of transformers: a language model with towers for images, videos or sound beside it.

Text alone never calls a tower, so the adapter takes the language model and the wrapper's own head, and drops the rest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import transformers
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from lsv_models.generic.refusal import Refused

MEDIA = ("vision", "visual", "image", "audio")
"""How the names of modules begin that take more than text."""
_building = threading.Lock()
"""Held while ``AutoModel`` is not as transformers made it: ranks of one process build at the same time."""
_MAPPINGS = (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES)


def find_wrapper(kind: str | None, architecture: str) -> type[PreTrainedModel] | None:
    """The class of a wrapper by its model_type, or by the name of its bare model; None for any other architecture."""
    for name in (str(mapping.get(kind, "")) for mapping in _MAPPINGS):
        if name and architecture in (name, f"{name.partition('For')[0]}Model"):
            found: type[PreTrainedModel] = getattr(transformers, name)
            return found
    return None


class Missing(nn.Module):
    """Stands for a tower that needs a package which is not installed."""


@contextlib.contextmanager
def without_missing(whole: PreTrainedConfig) -> Iterator[None]:
    """While the wrapper of a configuration is built, towers whose package is missing are left out: text does not need
    them.
    """

    def make_or_skip(config: PreTrainedConfig, **given: Any) -> nn.Module:
        try:
            return make(config, **given)  # type: ignore[no-any-return]
        except ImportError:
            if config.model_type == whole.get_text_config().model_type:
                raise
            return Missing()

    with _building:
        make, own = AutoModel.from_config, vars(AutoModel).get("from_config")
        AutoModel.from_config = make_or_skip
        try:
            yield
        finally:
            if own is None:
                del AutoModel.from_config
            else:
                AutoModel.from_config = own


def is_wrapper(lm: nn.Module) -> bool:
    """Whether a model is built like a wrapper."""
    kind = getattr(getattr(lm, "config", None), "model_type", None)
    return any(mapping.get(kind) == type(lm).__name__ for mapping in _MAPPINGS)


def find_base(lm: PreTrainedModel) -> str:
    """The name under which a model holds everything but its head, which bare models leave out of tensor names."""
    prefix = lm.base_model_prefix
    return prefix if prefix and hasattr(lm, prefix) else "model"


def find_language_model(lm: PreTrainedModel) -> str:
    """The name of the language model inside a wrapper, without a head. Raises ``Refused`` if there is none."""
    found = lm.get_decoder()
    if found is not lm and isinstance(found, PreTrainedModel) and found.get_output_embeddings() is not None:
        found = found.get_submodule(find_base(found))
    place = next((name for name, module in lm.named_modules() if module is found), "")
    if not place:
        raise Refused(f"transformers does not say which part of {type(lm).__name__} is its language model")
    return place


def find_headed(lm: PreTrainedModel, place: str) -> str:
    """The name of the innermost model that has a head above the body at ``place``; empty for the whole model."""
    parts = place.split(".")
    for depth in range(len(parts) - 1, 0, -1):
        owner = lm.get_submodule(".".join(parts[:depth]))
        if isinstance(owner, PreTrainedModel) and owner.get_output_embeddings() is not None:
            return ".".join(parts[:depth])
    return ""


def find_below_head(lm: PreTrainedModel, place: str) -> str:
    """The name of the module that has the body at ``place``, and whose result goes to the head."""
    depth = len(find_headed(lm, place).split(".")) if find_headed(lm, place) else 0
    return ".".join(place.split(".")[: depth + 1])


def drop_towers(lm: PreTrainedModel, place: str) -> list[str]:
    """Drop all weights of a wrapper but those of the language model at ``place`` and of the head.

    Returns the names of the dropped modules and parameters. Modules without weights stay.
    """
    unread = [*_find_beside(lm, place), *_find_within(lm, place)]
    drop(lm, unread)
    return unread


def drop(lm: PreTrainedModel, names: Iterable[str]) -> None:
    """Drop modules and parameters by name. A dropped one is no part of its owner any more, but the owner's code may
    still ask for its device or configuration.
    """
    for path in names:
        parent, _, name = path.rpartition(".")
        owner = lm.get_submodule(parent)
        dropped = getattr(owner, name)
        delattr(owner, name)
        owner.__dict__[name] = dropped


def _find_beside(lm: PreTrainedModel, place: str) -> Iterator[str]:
    """The modules and parameters that stand beside the language model, at each level above it."""
    headed: Any = lm.get_submodule(find_headed(lm, place))
    kept = {id(module) for module in (lm.get_input_embeddings(), headed.get_output_embeddings())}
    parts = place.split(".")
    for depth, inner in enumerate(parts):
        path = ".".join(parts[:depth])
        owner = lm.get_submodule(path)
        prefix = f"{path}." if path else ""
        for name, child in owner.named_children():
            weighty = isinstance(child, Missing) or child.state_dict()
            if name != inner and weighty and kept.isdisjoint(map(id, child.modules())):
                yield f"{prefix}{name}"
        yield from (f"{prefix}{name}" for name, parameter in owner._parameters.items() if parameter is not None)


def _find_within(lm: PreTrainedModel, place: str) -> Iterator[str]:
    """What a language model holds itself for media: models with a configuration of their own, and parts that are named
    by media, such as experts for images.
    """
    base, found = lm.get_submodule(place), []
    if is_flat(lm, place):
        found += [name for name, child in base.named_children() if _holds_model(child, lm)]
    for name, _ in base.named_modules():
        if name.rpartition(".")[2].startswith(MEDIA) and not name.startswith(tuple(f"{each}." for each in found)):
            found.append(name)
    yield from (f"{place}.{name}" for name in dict.fromkeys(found))


def _holds_model(module: nn.Module, lm: PreTrainedModel) -> bool:
    return any(isinstance(each, PreTrainedModel) and each.config is not lm.config for each in module.modules())


def is_flat(lm: PreTrainedModel, place: str) -> bool:
    """Whether the language model at ``place`` shares the configuration of the whole wrapper, and maybe holds towers."""
    return getattr(lm.get_submodule(place), "config", None) is lm.config
