"""Hunyuan MoE v1: an expert that all tokens go through beside the routed ones, q and k normalised after rotation."""

from __future__ import annotations

from lsv_base.errors import CheckpointError
from lsv_models.llama import LlamaLayer
from lsv_models.rms.blocks import LateNormAttention
from lsv_models.sparse.decoder import SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.keys import Keys


class HunyuanMoeLayer(LlamaLayer):
    attention = LateNormAttention
    qk_norm = True


class HunyuanMoe(SparseDecoder):
    layer = HunyuanMoeLayer
    defaults = {"rms_norm_eps": 1e-5}

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        for key, own in (("use_qk_norm", True), ("use_mixed_mlp_moe", True), ("use_cla", False), ("norm_type", "rms")):
            keys.agree(key, own)
        size = _same(keys, "moe_intermediate_size", c.intermediate_size)
        return Experts(
            layers=range(keys.take("moe_layer_num_skipped", int, 0), c.layers),
            count=_same(keys, "num_experts", 1),
            top=_same(keys, "moe_topk", 1),
            size=size,
            normalise=True,
            exact=True,
            gate="gate.wg",
            shared=c.intermediate_size * _same(keys, "num_shared_expert", 1),
            shared_name="shared_mlp",
        )


def _same(keys: Keys, key: str, default: int) -> int:
    """A number, which config.json may also give for each layer. Raises ``CheckpointError`` where layers differ."""
    given = keys.maybe(key, object)
    values = given if isinstance(given, list) else [default if given is None else given]
    if len(set(map(str, values))) != 1 or type(values[0]) is not int or values[0] < 1:
        raise CheckpointError(f"config.json: {key} must be one positive number for all layers, got {given!r:.100}")
    return values[0]
