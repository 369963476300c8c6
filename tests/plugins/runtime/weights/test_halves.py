"""Where a language model is in a checkpoint that holds more, going by the names of its tensors."""

import pytest

from lsv_base.errors import CheckpointError
from lsv_runtime.weights.halves import find_half

LAYER = ("self_attn.q_proj.weight", "mlp.up_proj.weight", "input_layernorm.weight")
DECLARED = [f"model.layers.{number}.{name}" for number in (0, 1) for name in LAYER]
DECLARED += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
TOWER = ["encoder.layers.0.self_attn.q_proj.weight", "encoder.layers.1.self_attn.q_proj.weight", "norm.weight"]
PLACES = {
    "transformers 5": ("model.language_model", "lm_head", "model.visual"),
    "transformers 4": ("language_model.model", "language_model.lm_head", "vision_tower.vision_model"),
    "a model of its own": ("model.text_model", "lm_head", "model.vision_model"),
    "a thinker": ("thinker.model", "thinker.lm_head", "thinker.visual"),
    "beside the tower": ("model", "lm_head", "visual"),
    "without a prefix": ("", "lm_head", "visual"),
    "a projector by the name of the body": ("language_model.model", "language_model.lm_head", "model.projector"),
    "deep": ("model.llm.inner", "model.llm.lm_head", "model.tower"),
}


def stored(place, head, tower):
    body = [name.removeprefix("model.") for name in DECLARED if name.startswith("model.")]
    return (
        [f"{place}.{name}" if place else name for name in body] + [f"{head}.weight"] + [f"{tower}.{t}" for t in TOWER]
    )


@pytest.mark.parametrize("case", PLACES)
def test_every_tensor_of_the_language_model_is_found(case):
    names = stored(*PLACES[case])
    half = find_half(names, DECLARED, lambda name: name)
    renamed = {half.rename(name) for name in names}
    assert set(DECLARED) <= renamed
    assert len(renamed) == len(names)
    within = [name for name in names if "lm_head" not in name]
    assert [half.restore(half.rename(name)) for name in within] == within
    tower = PLACES[case][2]
    assert all(any(f"{tower}.{name}".startswith(f"{begin}.") for begin in half.unread) for name in TOWER)
    ignored = tuple(f"{half.rename(begin)}." for begin in half.unread)
    assert not any(name.startswith(ignored) for name in [*DECLARED, "model.strange.weight", "model.layers.0.b.weight"])


def test_a_tower_with_tensors_that_the_language_model_may_have_is_not_taken_for_it():
    """As one with biases, beside a language model in a weight format that may have some."""
    names = [*stored(*PLACES["beside the tower"]), "visual.blocks.0.mlp.up_proj.bias", "visual.blocks.0.norm1.weight"]
    half = find_half(names, [*DECLARED, "model.layers.0.mlp.up_proj.bias"], lambda name: name)
    assert half.unread == ("visual",)
    assert half.rename("model.layers.0.mlp.up_proj.weight") == "model.layers.0.mlp.up_proj.weight"


def test_families_that_name_their_own_layers_otherwise_are_found():
    names = [name.replace("model.layers", "language_model.transformer.h") for name in DECLARED[:-3]]

    def own(name):
        return name.replace("transformer.h.", "model.layers.")

    assert own(find_half(names, DECLARED, own).rename(names[0])) == DECLARED[0]


def test_layers_may_go_by_another_name():
    """transformers 5.24 saves those of Kimi K2.5 as the blocks of its tower are called."""
    names = [name.replace(".layers.", ".blocks.") for name in stored(*PLACES["transformers 4"])]
    half = find_half(names, DECLARED, lambda name: name)
    assert set(DECLARED) <= {half.rename(name) for name in names}


def test_a_strange_tensor_within_the_language_model_is_not_passed_over():
    names = [*stored(*PLACES["transformers 5"]), "model.language_model.layers.0.self_attn.gate.weight"]
    half = find_half(names, DECLARED, lambda name: name)
    assert half.rename(names[-1]) == "model.layers.0.self_attn.gate.weight"
    assert not any(names[-1].startswith(begin) for begin in half.unread)


def test_packed_weights_are_found_as_plain_ones_are():
    names = [name.replace("proj.weight", "proj.weight_packed") for name in stored(*PLACES["transformers 5"])]
    declared = [name.replace("proj.weight", "proj.weight_packed") for name in DECLARED]
    half = find_half(names, declared, lambda name: name)
    assert set(declared) <= {half.rename(name) for name in names}


@pytest.mark.parametrize("usual", ["model.language_model", "language_model.model"])
def test_adapters_may_use_the_names_of_either_transformers(usual):
    half = find_half(stored(*PLACES["a model of its own"]), DECLARED, lambda name: name)
    assert half.rename(f"{usual}.layers.0.mlp.up_proj") == "model.layers.0.mlp.up_proj"


def test_a_checkpoint_without_a_language_model_is_refused():
    with pytest.raises(CheckpointError, match="no tensors of the language model"):
        find_half(["conv.weight", "tower.blocks.0.weight"], DECLARED, lambda name: name)
