"""Heads that draft a few tokens from the state behind the last one, and keep nothing between steps."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lsv.config import Drafts, EngineConfig
from lsv.plugins.catalog import Catalog
from lsv.resolve.locate import read_config
from lsv_base.errors import ConfigError
from lsv_drafters.checkpoint import open_heads
from lsv_drafters.choices import choices_behind, part
from lsv_runtime.drafts.drafter import Draftable, Drafter, Site
from lsv_runtime.drafts.speculator import Choose
from lsv_runtime.nn.dtypes import model_dtype
from lsv_runtime.nn.sampling import Choices
from lsv_runtime.weights.checkpoint import CheckpointSource
from lsv_runtime.worker.load.bound import bind_filled
from lsv_runtime.worker.sampling.edits import NO_EDITS


class Heads(nn.Module, abc.ABC):
    """The weights of all places."""

    places: int
    """How many tokens they draft at most."""
    width: int
    """How many numbers the states have that they read."""
    vocabulary: int

    @abc.abstractmethod
    def draft(self, states: Tensor, tokens: Tensor, counts: Sequence[int], choices: Choices, choose: Choose) -> Tensor:
        """Drafts of the first ``counts`` rows at each place, as ``lsv_runtime.drafts.speculator.Speculator`` makes
        them.
        """


class HeadsDrafter(Drafter):
    """Runs whole on every rank."""

    reads_states: ClassVar[bool] = True

    def __init__(self, drafts: Drafts) -> None:
        assert drafts.model is not None
        self._folder, self._longest = Path(drafts.model.folder), drafts.model.max_model_len

    @abc.abstractmethod
    def make(
        self, config: Mapping[str, Any], source: CheckpointSource, dtype: torch.dtype, device: torch.device
    ) -> Heads:
        """Read the weights; ``config`` is the heads' config.json. Raises ``CheckpointError``."""

    def weigh(self, config: EngineConfig, catalog: Catalog) -> int:
        with closing(open_heads(self._folder)) as source:
            sizes = [math.prod(info.shape) for info in source.tensors().values()]
        return sum(sizes) * model_dtype(config.dtype).itemsize

    def start(self, site: Site) -> None:
        config = read_config(self._folder, {})
        hidden = int(next(site.model.norm.parameters()).shape[-1])
        with closing(open_heads(self._folder)) as source:
            self._heads = self.make(config, source, model_dtype(site.config.dtype), site.device.torch_device)
        for what, own, theirs in (
            ("reads states of {} numbers, and those of this model have {}", self._heads.width, hidden),
            ("drafts {} tokens, and the model has {}", self._heads.vocabulary, site.model.vocab_size),
        ):
            if own != theirs:
                raise ConfigError(
                    f"speculative_model: {self._folder} {what.format(own, theirs)}: it was made for another model",
                    param="speculative_model",
                )
        bind_filled(self._heads, site.config, site.catalog)
        self._sampling = site.sampling

    def _choose(self, logits: Tensor, choices: Choices) -> Tensor:
        return self._sampling.choose(logits, choices, NO_EDITS)  # type: ignore[no-any-return]

    @torch.inference_mode()
    def propose(self, sequences: Sequence[Draftable]) -> list[list[int]]:
        rows = sorted(range(len(sequences)), key=lambda place: -sequences[place].most)
        asked = [sequences[place] for place in rows if len(sequences[place].ids) <= self._longest]
        found: list[list[int]] = [[] for _ in sequences]
        states = [one.state for one in asked if one.state is not None]
        if not states:
            return found
        places = range(min(asked[0].most, self._heads.places))
        counts = [sum(one.most > place for one in asked) for place in places]
        tokens = torch.tensor([int(one.ids[-1]) for one in asked]).to(states[0].device)
        drawn = self._heads.draft(torch.stack(states), tokens, counts, choices_behind(asked, 0), self._choose)
        told = part(drawn, counts, len(asked))
        by_place = iter(told)
        for place in rows:
            if len(sequences[place].ids) <= self._longest:
                found[place] = next(by_place)
        return found
