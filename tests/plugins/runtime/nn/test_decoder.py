"""Decoders: which blocks fused kernels are asked for, and what a family says about itself."""

import pytest

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.config import DecoderConfig
from lsv_runtime.nn.decoder import DecoderLayer, DenseDecoder
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import Rope
from lsv_testing.tensors import place

CONFIG = {
    "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "vocab_size": 8, "intermediate_size": 8,
}  # fmt: skip


class Block(DecoderLayer):
    op = "layer"


class Parallel(DecoderLayer):
    def reference(self, x, step):
        normed = self.before_attn(x)
        return x + self.attn(normed, step) + self.mlp(normed)


class Mine(DenseDecoder):
    layer = Block
    defaults = {"head_dim": 4}


def make(kind, **config):
    w, c = place(), DecoderConfig.read(Keys({**CONFIG, **config}))
    return kind(w, c, 0, Rope(w, c.rope, 8))


def test_only_the_block_that_fused_kernels_compute_is_offered_to_them():
    assert make(Block).spec().op == "layer"
    assert make(Parallel).spec().op == "layer.other"


@pytest.mark.parametrize("said", [False, True])
def test_biases_are_what_the_family_says_or_else_what_config_json_says(said):
    class Fixed(Block):
        qkv_bias, out_bias, mlp_bias = True, False, False

    def biases(layer):
        linears = (layer.attn.qkv, layer.attn.out, layer.mlp.gate_up, layer.mlp.down)
        return tuple(each.linear.layer.bias for each in linears)

    keys = {"attention_bias": said, "mlp_bias": said}
    assert biases(make(Block, **keys)) == (said,) * 4
    assert biases(make(Fixed, **keys)) == (True, False, False, False)


def test_a_dense_decoder_is_its_block_and_its_defaults():
    model = Mine(place(), CONFIG, 8)
    assert [type(layer) for layer in model.layers] == [Block, Block]
    assert [layer.attn.layer.index for layer in model.layers] == [0, 1]
    assert model.layers[0].attn.head_dim == 4
    assert Mine(place(), {**CONFIG, "head_dim": 8}, 8).layers[0].attn.head_dim == 8


def test_a_dense_decoder_refuses_keys_that_nobody_read():
    with pytest.raises(CheckpointError, match=r"keys Mine does not know .*: attention_multiplier;"):
        Mine(place(), {**CONFIG, "attention_multiplier": 2.0}, 8)
