"""Muon for the matrices and AdamW for the rest, on float32 copies of a bfloat16 model's parameters."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

# Coefficients of the quintic iteration in Keller Jordan's Muon (https://kellerjordan.github.io/posts/muon/).
QUINTIC = (3.4445, -4.7750, 2.0315)
QUINTIC_STEPS = 5

State = dict[str, Any]


def share_of_rate(step: int, steps: int, *, warm: int, falling: float) -> float:
    """Learning rate at `step` as a share of the highest: warm up, stay, fall in a line to nothing in the last steps."""
    return min(1.0, (step + 1) / warm, (steps - step) / max(1, falling))


def orthogonal(matrices: Tensor) -> Tensor:
    """Nearly the orthogonal factor of each matrix of [count, rows, columns], by a Newton-Schulz iteration."""
    a, b, c = QUINTIC
    x = matrices.bfloat16()
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(QUINTIC_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x if wide else x.mT).float()


class Muon:
    """Momentum, then an orthogonal update of each matrix; matrices of one shape go through together."""

    def __init__(self, matrices: Sequence[Tensor], rate: float, momentum: float, decay: float) -> None:
        self.rate, self.momentum, self.decay = rate, momentum, decay
        shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            shapes[matrix.shape].append(matrix)
        self.groups = list(shapes.values())
        self.traces = [torch.zeros(len(group), *group[0].shape) for group in self.groups]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One update with the rate times `scale`, from the gradients that lie in each matrix's `grad`."""
        for group, trace in zip(self.groups, self.traces, strict=True):
            gradients = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            trace.lerp_(gradients, 1 - self.momentum)
            update = orthogonal(gradients.lerp(trace, self.momentum))
            rows, columns = update.shape[-2:]
            step = self.rate * scale * max(1, rows / columns) ** 0.5
            for matrix, change in zip(group, update, strict=True):
                matrix.mul_(1 - self.rate * scale * self.decay).add_(change, alpha=-step)


class MasterWeights:
    """Float32 parameters to update, and the bfloat16 model that computes with a copy of them."""

    def __init__(self, model: nn.Module, matrix_rate: float, other_rate: float) -> None:
        self.parameters = list(model.parameters())
        self.masters = [parameter.detach().float().clone() for parameter in self.parameters]
        named = list(zip([name for name, _ in model.named_parameters()], self.masters, strict=True))
        tables = [name for name, _ in named if "embed" in name or "places" in name]
        matrices = [master for name, master in named if master.ndim == 2 and name not in tables]
        others = [master for name, master in named if master.ndim != 2 or name in tables]
        self.muon = Muon(matrices, matrix_rate, momentum=0.95, decay=0.1)
        self.adam = torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0)
        self.other_rate = other_rate

    def state(self) -> State:
        """All that a later run needs to go on: parameters and both optimizers' memories."""
        return {"masters": self.masters, "traces": self.muon.traces, "adam": self.adam.state_dict()}

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Go on from an earlier run's `state`."""
        for mine, saved in zip(self.masters + self.muon.traces, state["masters"] + state["traces"], strict=True):
            mine.copy_(saved)
        self.adam.load_state_dict(state["adam"])
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            parameter.copy_(master)

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Update from the model's gradients, both rates times `scale`, and write the parameters back."""
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        self.muon.step(scale)
        for group in self.adam.param_groups:
            group["lr"] = self.other_rate * scale
        self.adam.step()
        for master, parameter in zip(self.masters, self.parameters, strict=True):
            parameter.copy_(master)
