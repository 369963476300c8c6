"""Buffers of a transformers model that no checkpoint holds, mainly its rotary frequencies: made once and kept."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, modeling_rope_utils
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from lsv_models.generic.refusal import Refused
from lsv_runtime.nn.rope import RopeConfig, stretch_angles

_LENGTH_RULES = ("dynamic", "longrope")
_UNREAD = {"type", "finetuned"}


def freeze_ropes(model: nn.Module) -> None:
    """Keep rope rules that depend on the input's length from changing frequencies between steps.

    A cached key is rotated once, and requests of all lengths share a step, so ``make_buffers`` chooses once.
    """
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, dict) and not set(_LENGTH_RULES).isdisjoint(kind.values()):
            raise Refused("some kinds of its layers rotate by the length of the input")
        if isinstance(kind, str) and kind in _LENGTH_RULES:
            module.chosen_rope_type, module.rope_type = kind, "default"  # type: ignore[assignment]


def check_rope_keys(config: PreTrainedConfig) -> None:
    """Raise ``Refused`` for a parameter of the rope rule that neither transformers' rules nor the family's code name.

    transformers itself only warns of them.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    rules = [rule for rule in parameters.values() if isinstance(rule, dict)] or [parameters]
    given = {key for rule in rules for key, value in rule.items() if value not in (None, False)} - _UNREAD
    sources = (inspect.getsource(module) for module in (modeling_rope_utils, *_modules_of(config)))
    for source in sources:
        given = {key for key in given if f'"{key}"' not in source}
        if not given:
            return
    raise Refused(
        f"its rope rule has parameters that are not understood: {', '.join(sorted(given))}; set them to null with "
        "--hf-overrides if they do not matter"
    )


def _modules_of(config: PreTrainedConfig) -> Iterator[ModuleType]:
    """The modules that define a family's configuration and model."""
    yield sys.modules[type(config).__module__]
    model = type(config).__module__.replace(".configuration_", ".modeling_")
    if model in sys.modules:
        yield sys.modules[model]


def make_buffers(lm: PreTrainedModel, body: nn.Module, device: torch.device, max_len: int) -> None:
    """Replace the buffers of a body on meta by real ones, the way transformers itself does when it loads a checkpoint.

    Raises ``ValueError`` for a buffer that transformers does not initialise.
    """
    owner = body if isinstance(body, PreTrainedModel) else lm
    for name, module in body.named_modules():
        make_own_buffers(owner, name, module, device, max_len)


@torch.no_grad()
def make_own_buffers(
    owner: PreTrainedModel, name: str, module: nn.Module, device: torch.device, max_len: int = 0
) -> None:
    """As ``make_buffers``, those of one module of ``owner``.

    Weights are still on meta, so initialising a module only touches its buffers.
    """
    if not module._buffers:
        return
    for key, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[key] = _unset(buffer, device)
    owner._init_weights(module)
    _choose_length(module, max_len)
    for key, buffer in module._buffers.items():
        if buffer is not None and buffer.is_floating_point() and bool(buffer.isnan().any()):
            raise ValueError(f"transformers does not say how to make the buffer {name}.{key}")


def _unset(buffer: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Storage that shows if nothing is written to it."""
    if buffer.is_floating_point():
        return torch.full(buffer.shape, torch.nan, dtype=buffer.dtype, device=device)
    return torch.zeros(buffer.shape, dtype=buffer.dtype, device=device)


def _choose_length(module: nn.Module, max_len: int) -> None:
    """Fit a rope whose rule depends on the input's length to inputs of up to ``max_len`` tokens."""
    kind: Any = getattr(module, "chosen_rope_type", None)
    if kind == "longrope":
        rope: Any = module
        frequencies, rope.attention_scaling = ROPE_INIT_FUNCTIONS[kind](rope.config, rope.inv_freq.device, max_len)
        rope.inv_freq.copy_(frequencies)
    elif kind == "dynamic" and max_len > module.original_max_seq_len:
        _stretch(module)


def _stretch(module: Any) -> None:
    """Have a rope of rule dynamic rotate each token by its own position, as ``stretch_angles`` says."""
    parameters, dim, length = module.config.rope_parameters, 2 * len(module.inv_freq), module.original_max_seq_len
    rope = RopeConfig(
        kind="dynamic", theta=float(parameters["rope_theta"]), head_dim=dim, rotary_dim=dim, length=length,
        original_length=length, parameters=parameters,
    )  # fmt: skip
    scaling, arrange = module.attention_scaling, _find_arrangement(module)

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = arrange(stretch_angles(rope, position_ids.flatten())).unflatten(0, position_ids.shape)
        return (angles.cos() * scaling).to(x.dtype), (angles.sin() * scaling).to(x.dtype)

    module.forward = forward


def _find_arrangement(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """How a rope lays out the angles of feature pairs: side by side, or all firsts before all seconds."""
    positions = torch.arange(5, device=module.inv_freq.device)
    cos, _ = module(torch.empty(1, dtype=torch.float32, device=module.inv_freq.device), positions[None])
    angles = torch.outer(positions.float(), module.inv_freq.float())
    for arrange in (lambda pairs: torch.cat((pairs, pairs), -1), lambda pairs: pairs.repeat_interleave(2, -1)):
        if cos[0].shape == arrange(angles).shape and torch.allclose(cos[0], arrange(angles).cos()):
            return arrange
    raise Refused("its rope rule is dynamic, and how it lays out the angles is not known; choose a --max-model-len "
                  f"of at most {module.original_max_seq_len}")  # fmt: skip
