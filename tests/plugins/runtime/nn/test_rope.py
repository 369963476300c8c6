"""Rope: frequencies and rotation equal transformers' for every scaling rule, in both styles of config.json."""

import pytest
import torch

from lsv_base.errors import CheckpointError
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import InterleavedMRope, MRope, Rope, frequencies, read_rope, read_ropes
from lsv_testing.tensors import place

DIM, LENGTH = 32, 256
HALF = DIM // 2
RULES = {
    "default": {"rope_type": "default"},
    "default partial": {"rope_type": "default", "partial_rotary_factor": 0.5},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn untruncated": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
        "beta_fast": 16,
        "beta_slow": 2,
    },
    "yarn mscale": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "yarn magnitude": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.05 * i for i in range(HALF)],
        "long_factor": [1.5 + 0.2 * i for i in range(HALF)],
        "original_max_position_embeddings": 64,
    },
    "longrope factor": {
        "rope_type": "longrope",
        "short_factor": [1.0] * HALF,
        "long_factor": [4.0] * HALF,
        "factor": 16.0,
        "original_max_position_embeddings": 64,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def test_a_parameter_that_is_not_understood_is_refused():
    parameters = {**YARN, "extrapolation_factor": 2.0, "mrope_sections": [1]}
    for style in ("new", "old"):
        with pytest.raises(CheckpointError, match="not understood: extrapolation_factor, mrope_sections"):
            read_rope(Keys(config(parameters, style)), DIM, 10000.0)
    read_rope(Keys(config({**YARN, "finetuned": True, "mrope_interleaved": False})), DIM, 10000.0)


@pytest.mark.row("F-654")
def test_the_older_factor_on_yarn():
    """``attn_factor`` is laid on the rule's own magnitude, ``attention_factor`` takes its place."""
    plain = frequencies(read_rope(Keys(config(YARN)), DIM, 10000.0), LENGTH)[1]
    scaled = frequencies(read_rope(Keys(config({**YARN, "attn_factor": 0.5})), DIM, 10000.0), LENGTH)[1]
    assert scaled == pytest.approx(0.5 * plain)


def config(parameters, style="new"):
    plain = {"max_position_embeddings": LENGTH, "hidden_size": 4 * DIM, "num_attention_heads": 4}
    if style == "new":
        return {**plain, "rope_parameters": {**parameters, "rope_theta": 5000.0}}
    old = {**parameters, "type": parameters["rope_type"]}
    del old["rope_type"]
    return {**plain, "rope_theta": 5000.0, "rope_scaling": old}


def theirs(parameters, max_len):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.stablelm.modeling_stablelm import StableLmRotaryEmbedding

    parsed = LlamaConfig(**config(parameters))
    if parameters["rope_type"] == "default":  # the only default rule of transformers that knows partial rotation
        return StableLmRotaryEmbedding.compute_default_rope_parameters(parsed)
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](parsed, "cpu", max_len)


@pytest.mark.parametrize("style", ["new", "old"])
@pytest.mark.parametrize("max_len", [48, LENGTH, 1024])
@pytest.mark.parametrize("rule", RULES)
def test_frequencies_equal_transformers(rule, max_len, style):
    rope = read_rope(Keys(config(RULES[rule], style)), DIM, 10000.0)
    ours, magnitude = frequencies(rope, max_len)
    expected, expected_magnitude = theirs(RULES[rule], max_len if rule != "dynamic" else LENGTH)
    torch.testing.assert_close(ours, expected, rtol=2e-6, atol=0)
    assert magnitude == pytest.approx(expected_magnitude)


@pytest.mark.parametrize("rule", ["default", "default partial", "yarn", "proportional"])
def test_rotation_equals_transformers(rule):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    rope = Rope(place(), read_rope(Keys(config(RULES[rule])), DIM, 10000.0), LENGTH)
    rope.filled()
    heads, positions = torch.randn(9, 3, DIM), torch.randint(0, LENGTH, (9,))
    inverse, magnitude = frequencies(rope.rope, LENGTH)
    angles = torch.outer(positions.float(), inverse).repeat(1, 2)[None]
    turning = heads[None, ..., : rope.rope.rotary_dim].transpose(1, 2)
    expected, _ = apply_rotary_pos_emb(turning, turning, angles.cos() * magnitude, angles.sin() * magnitude)
    found = rope(heads, positions)
    torch.testing.assert_close(found[..., : rope.rope.rotary_dim], expected[0].transpose(0, 1), rtol=1e-5, atol=1e-5)
    assert torch.equal(found[..., rope.rope.rotary_dim :], heads[..., rope.rope.rotary_dim :])


def test_dynamic_frequencies_fall_with_the_position():
    """Within the checkpoint's length as without a rule; beyond it as transformers rotates an input's last token."""
    rope = Rope(place(), read_rope(Keys(config(RULES["dynamic"])), DIM, 10000.0), 4 * LENGTH)
    rope.filled()
    for position in (0, 5, LENGTH - 1, LENGTH, 2 * LENGTH + 7, 4 * LENGTH - 1):
        angles = position * theirs(RULES["dynamic"], position + 1)[0]
        cosines, sines = rope.table[position, :HALF], rope.table[position, DIM + HALF :]
        torch.testing.assert_close(cosines, angles.cos(), rtol=0, atol=1e-4)
        torch.testing.assert_close(sines, angles.sin(), rtol=0, atol=1e-4)


def test_layers_with_a_window_have_a_rule_of_their_own():
    by_kind = {"full_attention": RULES["linear"], "sliding_attention": {"rope_type": "default", "rope_theta": 7.0}}
    for keys, theta, local in (
        ({"rope_parameters": by_kind}, 1e4, 7.0),
        ({"rope_scaling": RULES["linear"], "rope_theta": 5.0, "rope_local_base_freq": 9.0}, 5.0, 9.0),
    ):
        full, windowed = read_ropes(Keys(keys), DIM, 1e4, 3.0)
        assert (full.kind, full.theta, windowed.kind, windowed.theta) == ("linear", theta, "default", local)
    full, windowed = read_ropes(Keys({"rope_scaling": RULES["linear"]}), DIM, 1e4)
    assert full == windowed


def test_su_is_an_older_name_of_longrope():
    rope = read_rope(Keys(config({**RULES["longrope"], "rope_type": "su"}, "old")), DIM, 10000.0)
    assert rope.kind == "longrope"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "spiral"}, "spiral"),
        ({"rope_type": "linear"}, "lacks factor"),
        ({"rope_type": "llama3", "factor": 2.0}, "low_freq_factor, high_freq_factor"),
        ({"full_attention": {"rope_type": "default"}}, "not known"),
    ],
)
def test_unusable_rules_are_refused(parameters, message):
    with pytest.raises(CheckpointError, match=message):
        read_rope(Keys(config(parameters)), DIM, 10000.0)


@pytest.mark.parametrize(("head_dim", "fraction"), [(20, 0.25), (15, 1.0), (32, 1.5)])
def test_features_that_make_no_pairs_are_refused(head_dim, fraction):
    rope = read_rope(Keys(config({"partial_rotary_factor": fraction})), head_dim, 1e4)
    message = f"{int(head_dim * fraction)} of the {head_dim} features of a head rotate, expected an even number"
    with pytest.raises(CheckpointError, match=message):
        Rope(place(), rope, LENGTH)


def test_longrope_needs_a_factor_per_pair():
    rope = read_rope(Keys(config({**RULES["longrope"], "short_factor": [1.0]})), DIM, 10000.0)
    with pytest.raises(CheckpointError, match="16 entries"):
        frequencies(rope, 32)


def filled_rope(kind, parameters):
    rope = kind(place(), read_rope(Keys(config(parameters)), DIM, 1e4), LENGTH)
    rope.filled()
    return rope


def test_sections_turn_by_axes_of_their_own():
    plain, mixed = filled_rope(Rope, {}), filled_rope(MRope, {"rope_type": "mrope", "mrope_section": [4, 6, 6]})
    heads, places = torch.randn(5, 3, DIM), torch.tensor([[7, 8, 9, 9, 1], [0, 3, 5, 9, 1], [4, 4, 4, 9, 1]])
    by_axis = [plain(heads, axis) for axis in places]
    # features of both halves of a head make a pair
    expected = torch.cat([by_axis[n % 3].split((4, 6, 6) * 2, dim=-1)[n] for n in range(6)], dim=-1)
    torch.testing.assert_close(mixed(heads, places), expected)
    torch.testing.assert_close(mixed(heads, places[:1].expand(3, -1)), by_axis[0])


def test_axes_take_turns_as_long_as_their_sections_last():
    plain, mixed = filled_rope(Rope, {}), filled_rope(InterleavedMRope, {"mrope_section": [9, 4, 3]})
    heads, places = torch.randn(5, 3, DIM), torch.tensor([[7, 8, 9, 9, 1], [0, 3, 5, 9, 1], [4, 4, 4, 9, 1]])
    by_axis = [plain(heads, axis) for axis in places]
    axes = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0, 0, 0, 0, 0] * 2
    expected = torch.stack([by_axis[axis][..., feature] for feature, axis in enumerate(axes)], dim=-1)
    torch.testing.assert_close(mixed(heads, places), expected)
    torch.testing.assert_close(mixed(heads, places[:1].expand(3, -1)), by_axis[0])


@pytest.mark.parametrize("key", ["mrope_interleaved", "interleaved"])
@pytest.mark.parametrize(("kind", "given"), [(Rope, True), (MRope, True), (InterleavedMRope, False)])
def test_who_takes_turns_is_not_for_the_config_to_say(kind, given, key):
    sections = {} if kind is Rope else {"mrope_section": [4, 6, 6]}
    with pytest.raises(CheckpointError, match=f": {key} must be {str(not given).lower()}"):
        filled_rope(kind, {**sections, key: given})
    filled_rope(kind, {**sections, key: not given})


@pytest.mark.parametrize("turns", [True, False])
def test_on_one_axis_sections_change_nothing(turns):
    """Texts have one axis: Qwen3.5's language model has the sections of the whole, whose pairs take turns."""
    sections = {"mrope_section": [4, 6, 6], "mrope_interleaved": turns}
    assert torch.equal(filled_rope(Rope, sections).table, filled_rope(Rope, {}).table)


@pytest.mark.parametrize("sections", [[4, 6, 7], [16], None])
def test_sections_must_make_up_all_pairs(sections):
    with pytest.raises(CheckpointError, match="3 numbers that add up to 16"):
        filled_rope(MRope, {"mrope_section": sections})
