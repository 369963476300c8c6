"""The seam to models that draft from the states of another model: EAGLE's heads, modules for several tokens at once."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch
from torch import Tensor

from lsv_runtime.nn.model import AttentionModel
from lsv_runtime.nn.step import Step


class StateReader(AttentionModel, abc.ABC):
    """Says what follows the token after a token, by this token's states and by the token after it.

    It has keys and values of its own. What its last layer says of a token is a state as well, from which it goes on
    where the other model has not been yet.
    """

    width: int
    """Numbers of a token that its first layer is given."""
    dtype: torch.dtype

    @abc.abstractmethod
    def merge(self, states: Tensor) -> Tensor:
        """[T, taps * hidden] of the model that answers -> states [T, hidden]."""

    @abc.abstractmethod
    def begin(self, ids: Tensor, states: Tensor, positions: Tensor) -> Tensor:
        """What its first layer is given: [T, width], of states [T, hidden] of tokens at ``positions``, and of the
        tokens ``ids`` behind each of them; both int64 [T].
        """

    def check(self, *, invented: bool) -> None:
        """Raises ``CheckpointError`` for weights that can't be; ``invented`` ones are made so that they can."""

    def embed(self, ids: Tensor, step: Step) -> Tensor:
        """Room for what ``begin`` makes, which its steps are given as embeddings."""
        return torch.zeros(len(ids), self.width, dtype=self.dtype, device=ids.device)


def read_layers(asked: object, layers: int, default: Sequence[int]) -> tuple[int, ...] | None:
    """The numbers of layers that a config.json names, in ascending order, as a model with ``layers`` has them; None
    where it has not.
    """
    found = default if asked is None else asked
    if not isinstance(found, list | tuple) or not all(type(one) is int and 0 <= one <= layers for one in found):
        return None
    return tuple(found) if list(found) == sorted(set(found)) and found else None
