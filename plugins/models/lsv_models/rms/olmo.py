"""OLMo 2 and 3: norms on what attention and MLP add, and on q and k over all heads; OLMo 3 has windows."""

from __future__ import annotations

from lsv_models.rms.blocks import PostNormLayer, WideNormAttention
from lsv_runtime.nn.decoder import DenseDecoder


class Olmo2Layer(PostNormLayer):
    attention = WideNormAttention
    qk_norm = True
    mlp_bias = False


class Olmo2(DenseDecoder):
    layer = Olmo2Layer
    defaults = {"norm_eps": 1e-5}


class Olmo3(Olmo2):
    defaults = {"norm_eps": 1e-5, "full_every": 4, "rope_theta": 5e5, "local_theta": 5e5}
