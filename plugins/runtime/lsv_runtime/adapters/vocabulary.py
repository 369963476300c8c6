"""What adapters change in embeddings and heads: low-rank products with them, or whole copies in their place.

Few adapters do, and a copy is as large as the matrix itself. So slots take memory only while they hold something.

Source: ``peft.tuners.lora.layer.Embedding`` and ``peft.utils.other.ModulesToSaveWrapper``, release 0.17.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from lsv_base.errors import CheckpointError
from lsv_runtime import products
from lsv_runtime.adapters.checkpoint import Pair
from lsv_runtime.adapters.rows import in_tiles, with_one_more
from lsv_runtime.adapters.shares import check_scaled
from lsv_runtime.nn.embed import Embed, Head
from lsv_runtime.nn.model import Model
from lsv_runtime.nn.step import Step, TokenAdapters


class VocabularyShare(NamedTuple):
    """What this rank holds of an adapter for an embedding or a head."""

    a: torch.Tensor
    """[rank, inputs]: an embedding's inputs are the vocabulary."""
    b: torch.Tensor
    """[rank, outputs], scaled: a head's outputs are this rank's share of the vocabulary."""
    whole: torch.Tensor | None
    """Takes the place of the weight: [vocabulary, size], or a head's share of that."""


class VocabularySlots(nn.Module):
    """The adapters of an embedding or a head: ``count`` slots, empty at first."""

    def __init__(self, name: str, vocabulary: int, size: int, count: int, dtypes: tuple[torch.dtype, torch.dtype]):
        """``dtypes`` are those of low-rank matrices and of whole copies."""
        super().__init__()
        self.name, self.vocabulary, self.size, self.dtypes = name, vocabulary, size, dtypes
        self.held = [False] * count

    def cut(self, pairs: dict[str, Pair]) -> VocabularyShare:
        """What this rank holds of an adapter. Raises ``CheckpointError`` for what does not fit, or is not served."""
        (pair,) = pairs.values()
        if pair.magnitude is not None:
            raise CheckpointError(f"{self.name}: use_dora is not served for embeddings and heads")
        self.check(pair)
        check_scaled(self.name, pair, self.dtypes[0])
        for shape in (pair.base, None if pair.copy is None else tuple(pair.copy.shape)):
            if shape is not None and shape != (self.vocabulary, self.size):
                raise self.differs(f"a copy of {list(shape)}", shape[0])
        return self.share(pair)

    def differs(self, found: str, vocabulary: int) -> CheckpointError:
        more = ": tokens that an adapter adds are not served" if vocabulary > self.vocabulary else ""
        return CheckpointError(f"{self.name} is [{self.vocabulary}, {self.size}], and the adapter has {found}{more}")

    def check(self, pair: Pair) -> None:
        raise NotImplementedError

    def share(self, pair: Pair) -> VocabularyShare:
        raise NotImplementedError

    def fill(self, slot: int, share: VocabularyShare | None, device: torch.device) -> None:
        """Put into a slot what ``cut`` gave; None is an adapter that leaves the layer as it is."""
        low, full = self.dtypes
        found = (None, None, None) if share is None else share
        for name, tensor in zip("abw", found, strict=True):
            dtype = full if name == "w" else low
            there = tensor is not None and tensor.numel() > 0
            self.register_buffer(f"{name}{slot}", None, persistent=False)  # what was there goes first
            if tensor is not None and there:
                self.register_buffer(f"{name}{slot}", tensor.to(device, dtype), persistent=False)
        self.held[slot] = share is not None

    def matrices(self, slot: int) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """``a``, ``b`` and the whole copy of a slot."""
        a, b, whole = (self._buffers.get(f"{name}{slot}") for name in "abw")
        return a, b, whole


class EmbedSlots(VocabularySlots):
    """Those of an embedding. Every rank holds all of them."""

    def __init__(self, embed: Embed, count: int, dtype: torch.dtype) -> None:
        super().__init__(embed.name, embed.vocab_size, embed.size, count, (dtype, embed.dtype))

    def check(self, pair: Pair) -> None:
        if len(pair.a) and not pair.embeds:
            raise CheckpointError(f"{self.name} is an embedding, and the adapter has lora_A and lora_B for it")
        if len(pair.a) and (pair.a.shape[1] != self.vocabulary or len(pair.b) != self.size):
            found = f"lora_embedding_A {list(pair.a.shape)}, lora_embedding_B {list(pair.b.shape)}"
            raise self.differs(found, pair.a.shape[1])

    def share(self, pair: Pair) -> VocabularyShare:
        return VocabularyShare(pair.a, pair.b.T, pair.copy)

    def change(self, x: torch.Tensor, ids: torch.Tensor, tokens: TokenAdapters) -> torch.Tensor:
        """The embeddings x [T, size] of ids [T], with what their adapters change."""
        out, padded = with_one_more(x), torch.cat((ids, ids.new_zeros(1)))
        for slot in (slot for slot, held in enumerate(self.held) if held):
            places = tokens.tiles[tokens.tile_slots == slot]
            a, b, whole = self.matrices(slot)
            if whole is not None:
                out[places] = whole[padded[places]]
            if a is not None and b is not None:
                low = a.T[padded[places]].float()
                added = torch.bmm(low, b.float().expand(len(low), -1, -1))
                out[places] = (out[places].float() + added).to(x.dtype)
        return out[:-1]


class HeadSlots(VocabularySlots):
    """Those of a head, cut as it is."""

    def __init__(self, head: Head, count: int, dtype: torch.dtype) -> None:
        layer = head.linear.layer
        super().__init__(layer.name, head.vocab_size, layer.inputs, count, (dtype, layer.dtype))
        self._start, self._stop, self._width = head.rows

    def check(self, pair: Pair) -> None:
        if pair.embeds:
            raise CheckpointError(f"{self.name} is a head, and the adapter has lora_embedding_A for it")
        if len(pair.a) and (len(pair.b) != self.vocabulary or pair.a.shape[1] != self.size):
            raise self.differs(f"lora_A {list(pair.a.shape)}, lora_B {list(pair.b.shape)}", len(pair.b))

    def share(self, pair: Pair) -> VocabularyShare:
        low = self._own(pair.b).T if len(pair.a) else pair.b
        return VocabularyShare(pair.a, low, None if pair.copy is None else self._own(pair.copy))

    def change(self, y: torch.Tensor, x: torch.Tensor, step: Step) -> torch.Tensor:
        """This rank's logits y [R, width] of the states x [R, size] of ``step.logits_rows``."""
        assert step.adapters is not None
        if len(step.logits_rows) != len(x):
            raise RuntimeError(f"{self.name} is given other rows than its step has")
        slots, out, states = step.adapters.slots[step.logits_rows], with_one_more(y), with_one_more(x)
        for slot in (slot for slot, held in enumerate(self.held) if held):
            for places in in_tiles(slots, slot):
                out[places] = self._multiply(out[places], states[places], slot)
        return out[:-1]

    def _multiply(self, y: torch.Tensor, x: torch.Tensor, slot: int) -> torch.Tensor:
        a, b, whole = self.matrices(slot)
        if whole is not None:
            y = products.matmul(x, whole.T)
        if a is None or b is None:
            return y
        added = products.matmul(products.matmul(x.to(a.dtype), a.T), b)
        return (y.float() + added.float()).to(y.dtype)

    def _own(self, rows: torch.Tensor) -> torch.Tensor:
        """This rank's of the vocabulary's rows, padded with zeros."""
        share = rows.new_zeros((self._width, *rows.shape[1:]))
        share[: self._stop - self._start] = rows[self._start : self._stop]
        return share


class AdaptedEmbed(nn.Module):
    """An embedding with its adapters."""

    def __init__(self, embed: Embed, slots: EmbedSlots) -> None:
        super().__init__()
        self.embed, self.slots = embed, slots

    def forward(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        x: torch.Tensor = self.embed(ids, step)
        if step.adapters is None or not any(self.slots.held):
            return x
        if len(ids) != len(step.adapters.slots):
            raise RuntimeError(f"{self.slots.name} is given other ids than the tokens of its step")
        return self.slots.change(x, ids, step.adapters)


def attach_vocabulary(model: Model, count: int, dtype: torch.dtype) -> Iterator[VocabularySlots]:
    """Give a declared model's embedding and head slots for ``count`` adapters, where they are modules of their own.

    Those of layers and encoders get none, for they are given other ids than the step's; nor do those that do more.
    """
    inner = {id(module) for part in (model.layers, model.encoder) if part is not None for module in part.modules()}
    for owner in [module for module in model.modules() if id(module) not in inner]:
        for name, child in list(owner.named_children()):
            if type(child) is Embed:
                setattr(owner, name, AdaptedEmbed(child, found := EmbedSlots(child, count, dtype)))
                yield found
            elif type(child) is Head:
                child.adapters = slots = HeadSlots(child, count, dtype)
                yield slots
