"""Snowflake Arctic: a dense transformer, beside whose MLPs are experts that read what attention reads.

Source: configuration_arctic.py and modeling_arctic.py, which come with Snowflake's checkpoints.
"""

from __future__ import annotations

import torch

from lsv_base.errors import CheckpointError
from lsv_models.sparse.decoder import SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.mlp import GatedMLP
from lsv_runtime.nn.moe import MoE
from lsv_runtime.nn.rope import Rope
from lsv_runtime.nn.step import Step
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights

_NAMES = ("w1", "w3", "w2")  # gate, up, down


class ParallelLayer(DecoderLayer):
    """Attention and a dense MLP, one after the other, with experts beside both: x [T, hidden] -> [T, hidden]."""

    op = "layer.parallel_experts"
    norms = {**DecoderLayer.norms, "before_dense": "residual_layernorm"}

    def __init__(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope | None, mlp: Bindable) -> None:
        super().__init__(w, c, layer, rope, mlp)
        self.dense = GatedMLP(w / "residual_mlp", c.hidden_size, c.hidden_size, c.activation, names=_NAMES)

    def reference(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        experts = self.mlp(self.before_mlp(x))
        x = x + self.attn(self.before_attn(x), step)
        return x + self.dense(self.before_dense(x)) + experts  # type: ignore[no-any-return]


class Arctic(SparseDecoder):
    mlp = "block_sparse_moe"
    defaults = {"rms_norm_eps": 1e-5, "rope_theta": 1e6}

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        every, top = keys.count("moe_layer_frequency", 2), keys.count("num_experts_per_tok", 1)
        if top == 1:
            raise CheckpointError(
                "config.json: num_experts_per_tok is 1, and Arctic's definitions differ in how they weigh an expert "
                "alone (by 1, or by its probability); it must be 2 at least"
            )
        return Experts(
            layers=[layer for layer in range(c.layers) if (layer + 1) % every == 0],
            count=keys.count("num_local_experts", 8),
            top=top,
            size=c.intermediate_size,
            normalise=True,
            names=_NAMES,
        )

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        given = {key: keys.maybe(key, bool) for key in ("parallel_attn_mlp_res", "use_residual")}
        if len({*given.values()} - {None}) > 1:
            raise CheckpointError(f"config.json: {' and '.join(given)} are two names of one thing, and must be equal")
        self.parallel = any(given.values())
        keys.agree("quantization", None)  # DeepSpeed's, of the weights as they are loaded
        # how DeepSpeed's layer spreads and drops tokens in training; the published forward pass drops none
        keys.skip(
            "moe_train_capacity_factor", "moe_eval_capacity_factor", "moe_min_capacity", "moe_token_dropping",
            "enable_expert_tensor_parallelism",
        )  # fmt: skip

    def make_mlp(self, w: Weights, c: DecoderConfig, layer: int, experts: Experts) -> Bindable:
        return super().make_mlp(w if layer in experts.layers else w / "mlp", c, layer, experts)

    def make_layer(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, mlp: Bindable) -> DecoderLayer:
        kind = ParallelLayer if self.parallel and isinstance(mlp, MoE) else self.layer
        return kind(w, c, layer, rope, mlp)
