"""Whether answers through a LoRA adapter are those of the model that the adapter is merged into."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from lsv import SamplingParams
from lsv.request.adapter import LoRARequest
from lsv_base.errors import LsvError
from lsv_doctor.models.comparing import find_difference
from lsv_doctor.models.prompts import draw, make_prompts
from lsv_doctor.models.reference import Reference
from lsv_doctor.models.trials.subject import Finding, Subject, Unable

_RANK, _ALPHA, _SPREAD = 4, 8.0, 0.2
_NEW_TOKENS = 8
_NEVER = re.compile(r"(^|\.)(experts|router|gate|shared_expert_gate|altup)(\.|$)")
"""Modules that adapters are not trained for."""
_LATENT = "kv_b_proj"
"""What latent attention multiplies into its queries, so that no adapter can change it."""
_USUAL = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
"""The names that most adapters have as target_modules."""
_ATTENTION = re.compile(r"att", re.IGNORECASE)

Pair = tuple[Tensor, Tensor]
"""The matrices A [rank, inputs] and B [outputs, rank] of a module."""


def try_adapters(subject: Subject) -> Finding:
    """An adapter of all linear layers that a text meets; where lsv refuses it, one of fewer layers."""
    modules = _met(subject)
    if not modules:
        raise Unable("a text meets no linear layer of transformers'")
    refused: LsvError | None = None
    for chosen, which in _choices(modules):
        try:
            found = _try(subject, chosen)
        except LsvError as error:
            refused = refused or error
        else:
            return found._replace(why="; ".join(filter(None, (which, found.why))))
    assert refused is not None
    raise refused


def _choices(modules: Mapping[str, nn.Module]) -> Iterator[tuple[dict[str, nn.Module], str]]:
    """Ever fewer of some modules, with words for which."""
    others = {name: module for name, module in modules.items() if not name.endswith(_LATENT)}
    usual = {name: module for name, module in others.items() if name.rpartition(".")[2] in _USUAL}
    attending = {name: module for name, module in others.items() if _ATTENTION.search(name)}
    yield dict(modules), ""
    if 0 < len(others) < len(modules):
        yield others, f"without {_LATENT}"
    if 0 < len(usual) < len(others):
        yield usual, "of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj alone"
    if 0 < len(attending) < len(others):
        yield attending, "of attention alone"


def _met(subject: Subject) -> dict[str, nn.Module]:
    """The linear layers that a text goes through, by name, without the matrix of logits."""
    called: set[nn.Module] = set()
    asked: Any = subject.asked
    head = asked.get_output_embeddings()
    linear = [one for one in subject.model.modules() if isinstance(one, (nn.Linear, Conv1D)) and one is not head]
    hooks = [one.register_forward_hook(lambda module, *given: called.add(module)) for one in linear]
    Reference(subject.asked).log_probabilities(draw(5, 95), subject.read)
    for hook in hooks:
        hook.remove()
    names = {name: module for name, module in subject.model.named_modules() if module in called}
    return {name: module for name, module in names.items() if not _NEVER.search(name)}


def _try(subject: Subject, modules: Mapping[str, nn.Module]) -> Finding:
    pairs = {name: _draw_pair(module, seed) for seed, (name, module) in enumerate(modules.items())}
    folder = _write(subject.folder / "adapter", modules, pairs)
    prompts = list(make_prompts(encodes=subject.encodes))[3:7]
    through = [LoRARequest("tiny", 1, folder) if number % 2 else None for number in range(len(prompts))]
    params = SamplingParams(
        temperature=0.0, max_tokens=_NEW_TOKENS, ignore_eos=True, detokenize=False, logprobs=-1, prompt_logprobs=-1
    )
    with subject.open(enable_lora=True, max_lora_rank=_RANK) as llm:
        answers = llm.generate(prompts, params, use_tqdm=False, lora_request=through)
    plain = [one for one, adapter in zip(answers, through, strict=True) if adapter is None]
    if why := find_difference(plain, subject.reference.log_probabilities, subject.stops):
        return Finding("wrong", f"beside an adapter, without it: {why}")
    changed = [one for one, adapter in zip(answers, through, strict=True) if adapter is not None]
    with _merged(modules, pairs):
        why = find_difference(changed, Reference(subject.asked).log_probabilities, subject.stops)
    return Finding("wrong", why) if why else Finding("yes")


def _draw_pair(module: Any, seed: int) -> Pair:
    outputs, inputs = module.weight.shape[:: -1 if isinstance(module, Conv1D) else 1]
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn((_RANK, inputs), generator=generator), torch.randn((outputs, _RANK), generator=generator)
    return _SPREAD * a, _SPREAD * b


def _write(folder: Path, modules: Mapping[str, nn.Module], pairs: Mapping[str, Pair]) -> Path:
    """Write an adapter as PEFT does."""
    folder.mkdir(exist_ok=True)
    tensors = {
        f"base_model.model.{name}.lora_{side}.weight": matrix
        for name, pair in pairs.items()
        for side, matrix in zip("AB", pair, strict=True)
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "r": _RANK, "lora_alpha": _ALPHA, "bias": "none", "target_modules": sorted(pairs),
        "fan_in_fan_out": any(isinstance(module, Conv1D) for module in modules.values()),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@contextmanager
def _merged(modules: Mapping[str, Any], pairs: Mapping[str, Pair]) -> Iterator[None]:
    """The model with the adapter in its weights, for as long as the block runs."""
    before = {name: module.weight.detach().clone() for name, module in modules.items()}
    with torch.no_grad():
        for name, module in modules.items():
            added = _ALPHA / _RANK * pairs[name][1] @ pairs[name][0]
            module.weight += added.T if isinstance(module, Conv1D) else added
        try:
            yield
        finally:
            for name, module in modules.items():
                module.weight.copy_(before[name])
