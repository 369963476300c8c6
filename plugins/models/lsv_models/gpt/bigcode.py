"""GPT-BigCode (SantaCoder, StarCoder): GPT-2 whose heads share one key and one value."""

from __future__ import annotations

from dataclasses import replace

from lsv_models.gpt.gpt2 import GPT2, read_scales
from lsv_runtime.nn.gpt.config import GptConfig
from lsv_runtime.nn.gpt.form import Form, Projections
from lsv_runtime.nn.gpt.model import Gpt
from lsv_runtime.nn.keys import Keys

_PRECISION = ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")
_KERNELS = ("inference_runner", "max_batch_size", "max_sequence_length", "pad_key_length", "pre_allocate_kv_cache")


class GptBigCode(Gpt):
    form = replace(GPT2, projections=Projections(names=("c_attn",), out="c_proj", blocks=None))
    prefixes = form.prefixes

    def read(self, keys: Keys) -> tuple[GptConfig, Form]:
        shared = keys.take("multi_query", bool, True)
        for name in (*_PRECISION, *_KERNELS, "validate_runner_input"):
            keys.maybe(name, object)
        c = GptConfig.read(keys, activation="gelu_pytorch_tanh", kv_heads=1 if shared else 0)
        return replace(c, scales=read_scales(keys, c)), self.form
