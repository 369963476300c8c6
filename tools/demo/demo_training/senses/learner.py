"""The language model with its tower, as they learn together."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer
from torch import Tensor, nn

from demo_training.senses.conversations import Batch
from demo_training.senses.pictures import ASPECTS, PLACES
from demo_training.senses.tower import Tower
from demo_training.tokenizer import media_tokens
from lsv.request.media import Modality


class Fields(nn.Module):
    """Tells of each embedding of a picture alone what its field shows, and which field it is.

    To say where one of several things is, the language model has to find its embedding among the others and read off
    the place. This loss makes both lie in every embedding the same way; the layer itself is not kept.
    """

    THINGS = ASPECTS[0]

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.head = nn.Linear(hidden, self.THINGS + len(PLACES))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def loss(self, made: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy; made [pictures, fields, hidden], labels int64 [pictures, aspects]."""
        scores = self.head(made).float()
        things, places = scores.split((self.THINGS, len(PLACES)), dim=-1)
        shown = labels[:, : len(PLACES)]
        index = torch.arange(len(PLACES)).expand_as(shown)
        lost = F.cross_entropy(things.flatten(0, 1), shown.flatten(), ignore_index=-1)
        return lost + F.cross_entropy(places.flatten(0, 1), index.flatten())


class Learner(nn.Module):
    """Embeddings take the places of the tokens that ``tokenizer`` has for media."""

    def __init__(self, language: transformers.LlamaForCausalLM, tower: Tower, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.language, self.tower = language, tower
        self.placeholders = media_tokens(tokenizer)
        self.fields = Fields(language.config.hidden_size).to(language.dtype)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [rows, length, vocabulary]."""
        return self._logits(batch, {kind: items.embed(self.tower) for kind, items in batch.items.items()})

    def _logits(self, batch: Batch, made: dict[Modality, Tensor]) -> Tensor:
        embeddings = self.language.get_input_embeddings()(batch.ids)
        for kind, items in batch.items.items():
            places = (batch.ids == self.placeholders[kind])[..., None]
            embeddings = embeddings.masked_scatter(places, made[kind][items.kept])
        return self.language(inputs_embeds=embeddings, use_cache=False).logits

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy of the next token by its weight, and what ``Fields`` finds of the pictures."""
        made = {kind: items.embed(self.tower) for kind, items in batch.items.items()}
        logits = self._logits(batch, made)[:, :-1]
        losses = F.cross_entropy(logits.flatten(0, 1).float(), batch.ids[:, 1:].flatten(), reduction="none")
        each = batch.weights[:, 1:].flatten()
        return (losses * each).sum() / each.sum(), self.fields.loss(made["image"], batch.items["image"].labels)

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
