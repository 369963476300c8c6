"""Buffers of a transformers model that no checkpoint holds, mainly its rotary frequencies: made once and kept."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

_LENGTH_RULES = ("dynamic", "longrope")


def freeze_ropes(model: nn.Module) -> None:
    """Keep rope rules that depend on the input's length from changing frequencies between steps.

    A cached key is rotated once, and requests of all lengths share a step, so ``make_buffers`` chooses once.
    """
    for module in model.modules():
        if getattr(module, "rope_type", None) in _LENGTH_RULES:
            module.chosen_rope_type, module.rope_type = module.rope_type, "default"


@torch.no_grad()
def make_buffers(lm: PreTrainedModel, body: nn.Module, device: torch.device, max_len: int) -> None:
    """Replace buffers on meta by real ones, the way transformers itself does when it loads a checkpoint.

    Weights are still on meta, so initialising a module only touches its buffers. Raises ``ValueError`` for a buffer
    that transformers does not initialise.
    """
    for name, module in body.named_modules():
        if not module._buffers:
            continue
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = _unset(buffer, device)
        lm._init_weights(module)
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
    kind = getattr(module, "chosen_rope_type", None)
    if kind is None:
        return
    frequencies, module.attention_scaling = ROPE_INIT_FUNCTIONS[kind](module.config, module.inv_freq.device, max_len)
    module.inv_freq.copy_(frequencies)
