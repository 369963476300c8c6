"""The seam to drafters, which propose what a sequence may go on with, and how their proposals are verified."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from lsv.config import Drafts, EngineConfig
from lsv.plugins.catalog import Catalog
from lsv_runtime.devices.device import Device

if TYPE_CHECKING:
    from torch import Tensor

    from lsv_runtime.nn.model import Model
    from lsv_runtime.nn.sampling import Sampling

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Draftable:
    """A sequence that tokens are to be drafted for."""

    memory: dict[str, Any]
    """What drafters remember of it, by a name of their own, as long as it runs; empty at first."""
    ids: Int32s
    """Its tokens, the last one just sampled. A view, good until the call ends."""
    prompt: int
    """How many of them are the prompt."""
    most: int
    """How many tokens are wanted, at least 1; fewer or none are as good."""
    choice: bytes = b""
    """How its tokens are chosen: a ``lsv_runtime.nn.sampling.CHOICE``. A token is verified with the random number of
    its place, which is the number of tokens before it; who draws with the same number agrees more often.
    """
    salt: bytes = b""
    """The tenant's salt. State that outlives a sequence is only for sequences with the same salt, because clients
    see by their counts which drafts were right.
    """
    state: Tensor | None = None
    """[hidden]: the model's normed state that the last token was sampled from, for a drafter that reads states."""


@dataclass(frozen=True, slots=True)
class Passage:
    """Some tokens of a sequence that a step has computed, and their states."""

    memory: dict[str, Any]
    """That of ``Draftable``."""
    ids: Int32s
    """The sequence's tokens, of which there is one more behind the passage at least. A view, good until the call ends.
    """
    start: int
    """The place of the passage's first token. Tokens that were found in a cache are in no passage."""
    states: Tensor
    """[tokens, taps * hidden]: side by side what ``Drafter.taps`` has named."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a drafter runs: on a rank's device, beside the model that answers."""

    config: EngineConfig
    catalog: Catalog
    device: Device
    model: Model
    sampling: Sampling
    """The model's; drafts that are drawn by it agree with what it draws."""


class Drafter(abc.ABC):
    """Proposes tokens in the worker, after each step, for sequences that a later step may verify them for.

    What it proposes changes no answer, but it must be the same on every rank: a function of the sequences it has seen,
    not of time or of chance.
    """

    reads_states: ClassVar[bool] = False
    """Whether it is given the states that last tokens were sampled from."""
    reads_all: ClassVar[bool] = False
    """Whether it reads states of all tokens: ``taps`` names them and ``read`` is given them."""

    def __init__(self, drafts: Drafts) -> None:
        """Raises ``ConfigError`` for options that it can't follow."""

    def weigh(self, config: EngineConfig, catalog: Catalog) -> int:
        """Bytes of the device's memory that it will take; asked for before ``start``. Raises ``StartError``."""
        return 0

    def taps(self, model: Model) -> tuple[int, ...]:
        """After how many layers of the model it reads the states of all tokens, in ascending order; those behind all
        layers are normed, and the only ones to be had where layers are spread over stages. Asked for before ``start``.
        Raises ``StartError``.
        """
        return ()

    def start(self, site: Site) -> None:
        """Load what it drafts by, before the first sequence. Raises ``StartError``."""

    def read(self, passages: Sequence[Passage]) -> None:
        """Take in what a step has computed of sequences: prompts, or what they said. Comes before ``propose``."""

    @abc.abstractmethod
    def propose(self, sequences: Sequence[Draftable]) -> Sequence[Sequence[int]]:
        """For each sequence the ids that may follow, the next one first; of the model's vocabulary."""

    def end(self, memory: dict[str, Any]) -> None:
        """A sequence has ended, or waits again: what is kept of it may go."""


def verify(drafts: Sequence[int], sampled: Sequence[int]) -> tuple[int, ...]:
    """Of ``sampled``, a token behind a sequence and one behind each of its drafts, those that are its answer.

    Each was sampled as if the drafts before it were the answer, by the random number of its place alone. So these are
    the tokens that come without drafts: as long as a draft is what was sampled in its place, the next one counts, too.
    A draft that is right with probability p is accepted with probability p, and the token in its place has the model's
    distribution: that is rejection sampling (Leviathan et al., 2023) for drafts that are certain of themselves.

    A negative number is no token and ends them.
    """
    kept: list[int] = []
    for token, draft in zip(sampled, (*drafts, None), strict=True):
        if token < 0:
            break
        kept.append(token)
        if token != draft:
            break
    return tuple(kept)
