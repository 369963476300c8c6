"""Any decoder-only architecture of transformers as a ``Model``.

The transformers model is built on meta, its linear layers are replaced by lsv's (so that kernels and weight formats
serve them too), and its attention is sent to the step's backend, through transformers' own attention interface or,
where a family writes its attention out, by recognising it. Before any of this counts, a small copy of the model has to
give what transformers' own forward gives.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from lsv_base.errors import ConfigError
from lsv_models.generic.body import Body, PassThrough, find_body
from lsv_models.generic.building import build, parse, reaches_all, selects
from lsv_models.generic.experts import skipped
from lsv_models.generic.indexing import ONE_TOKEN, Indexing
from lsv_models.generic.interface import Probe
from lsv_models.generic.layout import Layout
from lsv_models.generic.proof import prove
from lsv_models.generic.refusal import Refused, refuse
from lsv_models.generic.ropes import freeze_ropes, make_buffers
from lsv_models.generic.weights import declare_weights, untie_head
from lsv_models.generic.wrappers import drop_towers, find_base, find_below_head, find_headed, is_wrapper
from lsv_models.plugin import lsv_models
from lsv_runtime.attention import AttentionLayer
from lsv_runtime.nn.model import Model
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import dtype_name
from lsv_runtime.weights.place import Weights

log = logging.getLogger(__name__)


class Adapted(Model):
    """A ``Model`` around a transformers model. Raises ``Refused`` and whatever transformers raises."""

    ignores: tuple[str, ...] = (
        r"rotary_emb\.inv_freq$",
        r"\.attn\.(masked_)?bias$",
        r"\.attention\.(masked_)?bias$",
        r"\.position_ids$",
    )

    def __init__(self, w: Weights, config: PreTrainedConfig, max_len: int) -> None:
        super().__init__()
        with torch.device("meta"):
            lm, called = build(config, w.dtype)
        place = find_body(lm)
        headed, below_head = find_headed(lm, place), find_below_head(lm, place)
        base = lm.get_submodule(place)
        untie_head(w, lm)
        self._layout = Layout(lm, find_base(lm))
        self.unread = drop_towers(lm, place) if is_wrapper(lm) else []
        self.ignores = (*self.ignores, *ignored(self._layout, self.unread, lm))
        if is_wrapper(lm):
            prefixes = self._layout.spell_beginnings(lm)
            w = Weights(dataclasses.replace(w.declaration, prefixes=prefixes))  # weight formats name layers by them
        freeze_ropes(lm)
        declare_weights(w, lm, self._layout, max_len)
        body = Body(base)
        body.reaches_all, body.selects = reaches_all(lm.config, max_len), selects(lm.config, max_len)
        self.layers = nn.ModuleList([body])
        self.norm = nn.Identity()
        self.tokens = lm.get_input_embeddings()
        lm.set_submodule(below_head, PassThrough(lm.get_submodule(below_head)))
        self.lm = lm.get_submodule(headed)
        self._probe(body, called)
        make_buffers(lm, base, w.device, max_len)

    @property
    def body(self) -> Body:
        body = self.layers[0]
        assert isinstance(body, Body)
        return body

    @torch.no_grad()
    def _probe(self, body: Body, called: bool) -> None:
        """Run one token on meta to learn the attention layers and the width of the logits."""
        self.eval()
        ids = torch.zeros(1, dtype=torch.int64, device="meta")
        with skipped(self):
            for body.written_out in (False, True) if called else (True,):
                probe = Probe()
                indexing = Indexing(probe.keep, ONE_TOKEN) if body.selects else None
                hidden = body.run(self.tokens(ids), ids, ids[None], probe, indexing)
                if probe.layers:
                    break
            else:
                raise Refused("none of its layers attends in a way that is recognised")
            self.vocab_size = int(self._logits(hidden).shape[-1])
        body.place(probe.layers)

    def embed(self, ids: torch.Tensor, step: Step) -> torch.Tensor:
        return self.tokens(ids)  # type: ignore[no-any-return]

    def head(self, hidden: torch.Tensor, step: Step) -> torch.Tensor:
        return self._logits(hidden)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm(inputs_embeds=hidden[None], use_cache=False).logits[0]  # type: ignore[no-any-return]

    def rename(self, name: str) -> str:
        return self._layout.rename(name)

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return tuple(self.body.layers)

    def place_layers(self, layers: Sequence[AttentionLayer]) -> None:
        self.body.place(layers)


def ignored(layout: Layout, unread: Sequence[str], lm: PreTrainedModel) -> Iterator[str]:
    """Patterns of the tensors of dropped modules, and of those that a wrapper itself says it does not read."""
    yield from layout.patterns_within(unread)
    if is_wrapper(lm):
        yield from lm._keys_to_ignore_on_load_unexpected or ()


class Generic(Adapted):
    """A proved one. Raises ``CheckpointError`` for architectures it can't run."""

    def __init__(self, w: Weights, config: Mapping[str, Any], max_len: int) -> None:
        architecture = str((config.get("architectures") or ["?"])[0])
        try:
            parsed = parse({**config, "dtype": dtype_name(w.dtype)}, max_len)
            prove(parsed, Adapted)
            super().__init__(w, parsed, max_len)
            if self.unread and w.shard.rank == 0:
                names = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in self.unread)
                log.info("%s: the language model alone runs; unread: %s", architecture, ", ".join(names))
        except ConfigError:
            raise
        except Exception as cause:  # transformers' own classes raise whatever they meet
            known = (name for offer in lsv_models() for name in offer.architectures)
            raise refuse(architecture, cause, known) from cause
