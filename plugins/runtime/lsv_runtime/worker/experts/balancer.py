"""Counts which experts are chosen, and moves experts between ranks so that these have as much to do as each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import torch
from torch import nn

from lsv_base.errors import ConfigError
from lsv_runtime.devices.communicator import Communicator
from lsv_runtime.nn.moe import MoE
from lsv_runtime.ops import Bindable, MixingKernel, dtype_name
from lsv_runtime.weights.placement import Spread
from lsv_runtime.worker.experts.exchanges import choose_exchanges, rank_loads


class ExpertBalancer:
    """The spread experts of a filled model, on one of the ranks that share them.

    All ranks do the same at the same place between two steps. Weights are exchanged as they lie, in the layouts of
    formats and kernels, into the memory of those that they take the places of: no address changes, so steps that are
    captured from here on compute with those that came, and count.
    """

    def __init__(self, model: nn.Module, communicator: Communicator, device: torch.device) -> None:
        """Raises ``ConfigError`` where a mixture's experts can't take each other's places."""
        self._communicator = communicator
        self._mixtures = list(_find_spread(model))
        _check_alike([moe for moe, _ in self._mixtures], communicator, device)
        self.count()

    def count(self) -> None:
        """Count tokens from here on, beginning with none."""
        for _, spread in self._mixtures:
            spread.start_counting()

    def balance(self) -> Mapping[str, float]:
        """Even out what was counted. Tokens in all mixtures: a rank's ``mean``, those of each
        mixture's fullest rank (``most``) and of the one that is that afterwards (``left``); and how many ``moved``.
        """
        answer = dict.fromkeys(("mean", "most", "left", "moved"), 0.0)
        ranks = self._communicator.group.size
        for (moe, spread), loads in zip(self._mixtures, self._take_counts(), strict=True):
            exchanges = choose_exchanges(loads, spread.owners, ranks)
            answer["mean"] += sum(loads) / ranks
            answer["most"] += int(rank_loads(loads, spread.owners, ranks).max())
            for one, other in exchanges:
                self._exchange(moe, spread, one, other)
            answer["left"] += int(rank_loads(loads, spread.owners, ranks).max())
            answer["moved"] += 2 * len(exchanges)
        return answer

    def _take_counts(self) -> list[list[int]]:
        """How often each expert was chosen, for each mixture: the first rank's counts, on all ranks."""
        counts = [each.counts for _, each in self._mixtures if each.counts is not None]
        if not counts:
            return []
        every = iter(self._communicator.broadcast(torch.cat(counts)).tolist())
        return [list(islice(every, len(part))) for part in counts]

    def _exchange(self, moe: MoE, spread: Spread, one: int, other: int) -> None:
        """Every rank gives an expert. Only two of them take what the other of the two gives."""
        first, second = spread.owners[one], spread.owners[other]
        place, source = 0, -1
        if one in spread.places:
            place, source = spread.places[one], second
        elif other in spread.places:
            place, source = spread.places[other], first
        for _, tensor in expert_tensors(moe, place):
            mine = tensor.contiguous().view(-1).view(torch.uint8)
            every = self._communicator.all_gather(mine, 0).view(-1, len(mine))
            if source >= 0:
                tensor.copy_(every[source].view(tensor.dtype).view(tensor.shape))
        spread.exchange(one, other)


def held_tensors(expert: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """All that an expert's weights are in, by name: what formats have made of them, and kernels of that."""
    named = [*expert.named_parameters(), *expert.named_buffers()]
    return sorted((name, tensor.detach()) for name, tensor in named if not tensor.is_meta and tensor.numel())


def expert_tensors(moe: MoE, place: int) -> list[tuple[str, torch.Tensor]]:
    """The same of one of a mixture's experts, which the kernel of all may keep together."""
    apart = moe.kernel.held_tensors(place) if isinstance(moe.kernel, MixingKernel) else {}
    return sorted(apart.items()) or held_tensors(moe.experts[place])


def _find_spread(model: nn.Module) -> Iterator[tuple[MoE, Spread]]:
    for module in model.modules():
        if isinstance(module, MoE) and module.spread is not None:
            yield module, module.spread


def _check_alike(mixtures: Sequence[MoE], communicator: Communicator, device: torch.device) -> None:
    """Raises ``ConfigError`` unless all experts of a mixture are in the same tensors, on all ranks."""
    forms = [sorted({_describe(moe, place) for place in range(len(moe.experts))}) for moe in mixtures]
    alike = all(len(each) == 1 and each[0] for each in forms)
    digest = int.from_bytes(hashlib.sha256(repr(forms).encode()).digest()[:7])
    every = communicator.all_gather(torch.tensor([[alike, digest]], device=device), 0)
    if not bool((every == every[0]).all()) or not alike:
        raise ConfigError(
            "enable_eplb: experts of this model can't take each other's places: those of a layer are of different "
            "formats, or a kernel keeps them apart from their modules; leave it out, or say where they are by "
            "--expert-map",
            param="enable_eplb",
        )


def _describe(moe: MoE, place: int) -> str:
    """The form of an expert's weights, and what they mean; empty where nobody says where they are."""
    tensors = [(name, tuple(tensor.shape), dtype_name(tensor.dtype)) for name, tensor in expert_tensors(moe, place)]
    specs = [module.spec() for module in moe.experts[place].modules() if isinstance(module, Bindable)]
    meanings = [(spec.op, spec.dtype, spec.format, sorted(spec.shape.items()), sorted(spec.flags)) for spec in specs]
    return repr((tensors, meanings)) if tensors else ""
