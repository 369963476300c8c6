"""Whether layers that predict further tokens (MTP) of a class's checkpoints draft for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from lsv import SamplingParams
from lsv.offers import ModelOffer
from lsv_doctor.models.comparing import find_difference
from lsv_doctor.models.prompts import make_prompts
from lsv_doctor.models.trials.subject import Finding, Subject, Unable

_BESIDE = re.compile(r"mtp")
_BEHIND = re.compile(r"layers\\\.\d+(\\\.|\.\*)")
"""How transformers' classes name tensors of published checkpoints that they pass over."""
_KEY = re.compile(r".*(nextn|mtp).*layers.*")
_LAYER = re.compile(r"(.*?layers\.)(\d+)\.")
_SPREAD = 0.2
_TOWERS = re.compile(r"vision|visual|audio|image|talker|encoder")


def try_further(subject: Subject) -> Finding:
    """Add such a layer to the checkpoint, and draft by it: answers stay the same."""
    places = _places(subject.model)
    if not places and not any(map(_KEY.fullmatch, subject.model.config.get_text_config().to_dict())):
        return Finding("none")
    offer = subject.catalog.find(ModelOffer, subject.config.model_offer)
    if offer.further is None:
        return Finding("no", "such layers of its checkpoints are passed over")
    _add_layer(subject, beside=any(map(_BESIDE.search, places)))
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, detokenize=False, logprobs=-1)
    drafts = {"method": "mtp", "num_speculative_tokens": 2}
    with subject.open(speculative_config=drafts) as llm:
        answers = llm.generate(list(make_prompts(encodes=False))[3:7], params, use_tqdm=False)
        drafted = llm.stats.speculation
    if why := find_difference(answers, subject.reference.log_probabilities, subject.stops):
        return Finding("wrong", why)
    return Finding("yes") if drafted else Finding("wrong", "nothing was drafted")


def _places(model: PreTrainedModel) -> list[str]:
    """The patterns of tensors of such layers that transformers' classes pass over."""
    patterns = (
        str(pattern)
        for module in model.modules()
        if isinstance(module, PreTrainedModel)
        for pattern in module._keys_to_ignore_on_load_unexpected or ()
    )
    return [one for one in patterns if _BESIDE.search(one) or _BEHIND.search(one)]


def _add_layer(subject: Subject, *, beside: bool) -> None:
    """Add a layer like the model's last that attends to everything, with what joins embeddings and states."""
    file, path = subject.folder / "model.safetensors", subject.folder / "config.json"
    if not file.exists():
        raise Unable("the checkpoint has several files")
    stored, config = load_file(file), json.loads(path.read_text())
    text = config.get("text_config", config)
    count, width = int(text["num_hidden_layers"]), int(text["hidden_size"])
    like = _last_attending(text, count)
    prefix = _prefix(stored, like)
    place = "mtp." if beside else f"{prefix}{count}."
    into = f"{place}layers.0." if beside else place
    generator = torch.Generator().manual_seed(4)
    layer = {
        name.replace(f"{prefix}{like}.", into): tensor + _SPREAD * torch.randn(tensor.shape, generator=generator)
        for name, tensor in stored.items()
        if name.startswith(f"{prefix}{like}.")
    }
    joined = {
        f"{place}{name}": _SPREAD * torch.randn(shape, generator=generator) for name, shape in _joins(width, beside)
    }
    save_file({**stored, **layer, **joined}, file, metadata={"format": "pt"})
    if not beside:
        text["num_nextn_predict_layers"] = 1
        path.write_text(json.dumps(config))


def _last_attending(text: Mapping[str, Any], count: int) -> int:
    kinds = text.get("layer_types") or ()
    return max((number for number, kind in enumerate(kinds) if "full" in kind), default=count - 1)


def _prefix(stored: Mapping[str, Tensor], layer: int) -> str:
    """What stands before the number of a layer of the text model, in the checkpoint's names."""
    for name in stored:
        found = _LAYER.match(name)
        if found and int(found[2]) == layer and not _TOWERS.search(name):
            return found[1]
    raise Unable(f"no tensor of the checkpoint is named like one of layer {layer}")


def _joins(width: int, beside: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of what joins embeddings and states."""
    if beside:
        yield "fc.weight", (width, 2 * width)
        yield from ((f"{name}.weight", (width,)) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"))
    else:
        yield "eh_proj.weight", (width, 2 * width)
        yield from ((f"{name}.weight", (width,)) for name in ("enorm", "hnorm", "shared_head.norm"))
