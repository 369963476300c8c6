"""Weights that leave their device for a while: copied to the host, and back into the same tensors."""

from __future__ import annotations

import torch
from torch import nn


class ParkedWeights:
    """Copies of a model's weights in the host's memory; on their device they take no memory until ``restore``.

    Parameters and buffers keep their shapes and all views of them stay good, but their addresses change: what was
    captured or compiled over them has to be made again. Those that are on the host anyway stay where they are.
    """

    @torch.inference_mode()
    def __init__(self, model: nn.Module) -> None:
        self._copies: list[tuple[torch.UntypedStorage, torch.Tensor]] = []
        for storage in _storages(model):
            self._copies.append((storage, bytes_of(storage).cpu()))
            storage.resize_(0)

    @property
    def nbytes(self) -> int:
        """What the device has been given back."""
        return sum(copy.nbytes for _, copy in self._copies)

    @torch.inference_mode()
    def restore(self) -> None:
        """Bring everything back. What a device without enough memory could not take stays parked; call it again."""
        while self._copies:
            storage, copy = self._copies[-1]
            storage.resize_(copy.nbytes)
            bytes_of(storage).copy_(copy)
            self._copies.pop()


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """uint8 [bytes], the storage itself."""
    nothing = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return nothing.set_(storage, 0, (storage.nbytes(),), (1,))


def _storages(model: nn.Module) -> list[torch.UntypedStorage]:
    """The memory of all weights that are on a device, each once: tied ones share theirs."""
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if not (tensor.is_cpu or tensor.is_meta):
            storage = tensor.untyped_storage()
            if storage.nbytes():
                found.setdefault(storage.data_ptr(), storage)
    return list(found.values())
