"""The configuration under which a draft model is loaded beside the model that it drafts for."""

from __future__ import annotations

import msgspec

from lsv.config import DraftModel, EngineConfig, Topology
from lsv.request.pooling import Pooler

MOST_TOKENS = 1 << 16
"""Tokens of all sequences that a draft model keeps at a time, unless a single sequence may have more."""


def draft_config(config: EngineConfig, groups: int = 1) -> EngineConfig:
    """As ``config``, on one rank, for the draft's checkpoint; its cache has ``groups`` groups.

    Without a checkpoint of its own the draft is a part of the model's.
    """
    assert config.drafts is not None
    model = config.drafts.model
    longest = config.max_model_len if model is None else min(config.max_model_len, model.max_model_len)
    blocks = -(-longest // config.block_size)
    sequences = max(1, min(config.max_num_seqs, MOST_TOKENS // (blocks * config.block_size)))
    own = config if model is None else _with_checkpoint(config, model)
    return msgspec.structs.replace(
        own,
        kv_dtype="auto",
        kv_scales=None,
        pooler=Pooler(),
        max_model_len=longest,
        chunked_prefill=True,
        num_blocks=groups * blocks * sequences,
        offload_bytes=0,
        kv_bytes=None,
        drafts=None,
        adapters=None,
        encoded=None,
        topology=Topology(),
    )


def _with_checkpoint(config: EngineConfig, model: DraftModel) -> EngineConfig:
    return msgspec.structs.replace(
        config,
        model=model.folder,
        parts=(),
        architecture=model.architecture,
        wrapper=model.wrapper,
        model_offer=model.offer or config.model_offer,
        quantization=model.quantization,
        quantization_ignore=(),
        load_format="dummy" if config.load_format == "dummy" else "auto",
        loader={},
        overrides=model.overrides,
    )
