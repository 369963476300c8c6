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
from lsv.drafts.drafter import Draftable, Drafter, Site
from lsv.errors import ConfigError
from lsv.nn.dtypes import model_dtype
from lsv.plugins.catalog import Catalog
from lsv.resolve.locate import read_config
from lsv.weights.checkpoint import CheckpointSource
from lsv.worker.edits import NO_EDITS
from lsv.worker.load.bound import bind_filled
from lsv_drafters.checkpoint import open_heads
from lsv_drafters.choices import choices_behind, tell


class Heads(nn.Module, abc.ABC):
    """The weights of all places."""

    places: int
    """How many tokens they draft at most."""
    width: int
    """How many numbers the states have that they read."""
    vocabulary: int

    @abc.abstractmethod
    def begin(self, states: Tensor) -> Tensor:
        """What the first place is given of the model's normed states [rows, width]."""

    @abc.abstractmethod
    def go_on(self, states: Tensor, tokens: Tensor, place: int) -> Tensor:
        """The states [rows, ...] of a place, from those before it and the tokens int64 [rows] drawn from these."""

    @abc.abstractmethod
    def logits(self, states: Tensor, place: int) -> Tensor:
        """[rows, vocabulary]."""


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

    @torch.inference_mode()
    def propose(self, sequences: Sequence[Draftable]) -> list[list[int]]:
        rows = sorted(range(len(sequences)), key=lambda place: -sequences[place].most)
        asked = [sequences[place] for place in rows if len(sequences[place].ids) <= self._longest]
        found: list[list[int]] = [[] for _ in sequences]
        states = [one.state for one in asked if one.state is not None]
        if not states:
            return found
        x, tokens = self._heads.begin(torch.stack(states)), torch.tensor([int(one.ids[-1]) for one in asked])
        tokens, drawn = tokens.to(x.device), list[Tensor]()
        for place in range(min(asked[0].most, self._heads.places)):
            staying = [one for one in asked if one.most > place]
            x = self._heads.go_on(x[: len(staying)], tokens[: len(staying)], place)
            tokens = self._sampling.choose(self._heads.logits(x, place), choices_behind(staying, place), NO_EDITS)
            drawn.append(tokens)
            tokens = tokens.clamp(min=0)
        told = tell(drawn, len(asked))
        by_place = iter(told)
        for place in rows:
            if len(sequences[place].ids) <= self._longest:
                found[place] = next(by_place)
        return found
