"""The language model with its tower, as they learn together."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from lsv.media import Modality
from lsv_demo.senses.conversations import Batch
from lsv_demo.senses.tower import Tower


class Learner(nn.Module):
    """``placeholders`` are the tokens that embeddings take the place of."""

    def __init__(self, language: LlamaForCausalLM, tower: Tower, placeholders: dict[Modality, int]) -> None:
        super().__init__()
        self.language, self.tower, self.placeholders = language, tower, placeholders

    def forward(self, batch: Batch) -> Tensor:
        """Logits [rows, length, vocabulary]."""
        embeddings = self.language.get_input_embeddings()(batch.ids)
        for kind, items in batch.items.items():
            made = items.embed(self.tower)[items.kept]
            embeddings = embeddings.masked_scatter((batch.ids == self.placeholders[kind])[..., None], made)
        return self.language(inputs_embeds=embeddings, use_cache=False).logits

    def loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the next token by its weight."""
        logits = self(batch)[:, :-1]
        losses = F.cross_entropy(logits.flatten(0, 1).float(), batch.ids[:, 1:].flatten(), reduction="none")
        each = batch.weights[:, 1:].flatten()
        return (losses * each).sum() / each.sum()

    @torch.inference_mode()
    def marks(self, batch: Batch) -> list[list[bool]]:
        """For each row, whether each of its answers comes out greedily; answers are the runs of weight 1."""
        right = self(batch)[:, :-1].argmax(-1) == batch.ids[:, 1:]
        marks: list[list[bool]] = []
        for hit, weight in zip(right.tolist(), batch.weights[:, 1:].tolist(), strict=True):
            row: list[bool] = []
            inside = False
            for one, share in zip(hit, weight, strict=True):
                if share == 1.0:
                    row = [*row[:-1], row[-1] and one] if inside else [*row, one]
                inside = share == 1.0
            marks.append(row)
        return marks
