"""GLM-4.5 and GLM-4.5-Air: DeepSeek-V3's experts around plain attention, half of whose features rotate."""

from __future__ import annotations

import dataclasses

from lsv_models.llama import LlamaLayer
from lsv_models.sparse.decoder import SparseDecoder
from lsv_models.sparse.experts import Experts
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DecoderLayer
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import Rope
from lsv_runtime.ops import Bindable
from lsv_runtime.weights.place import Weights


def read_experts(keys: Keys, c: DecoderConfig) -> Experts:
    experts = Experts.read_deepseek(keys, c.layers, keys.take("norm_topk_prob", bool, True), scale=1.0)
    return dataclasses.replace(experts, scores="sigmoid", correction="e_score_correction_bias")


class Glm4MoeLayer(LlamaLayer):
    out_bias = False


class Glm4MoeNormedLayer(Glm4MoeLayer):
    qk_norm = True


class Glm4Moe(SparseDecoder):
    defaults = {"rms_norm_eps": 1e-5}
    common = {"rotary_fraction": 0.5}

    def read_experts(self, keys: Keys, c: DecoderConfig) -> Experts:
        return read_experts(keys, c)

    def read_more(self, keys: Keys, c: DecoderConfig) -> None:
        self.normed = keys.take("use_qk_norm", bool, False)
        keys.maybe("num_nextn_predict_layers", int)
        # layers that predict further tokens follow those of the model
        self.ignores = (*self.ignores, rf"^model\.layers\.{c.layers}\.")

    def make_layer(self, w: Weights, c: DecoderConfig, layer: int, rope: Rope, mlp: Bindable) -> DecoderLayer:
        return (Glm4MoeNormedLayer if self.normed else Glm4MoeLayer)(w, c, layer, rope, mlp)
