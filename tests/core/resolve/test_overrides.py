"""The rope options win over whatever a checkpoint says, in either layout."""

from __future__ import annotations

import pytest

from lsv.resolve.locate import merge
from lsv.resolve.overrides import place_overrides, rope_overrides, strange_overrides
from lsv_runtime.nn.keys import Keys
from lsv_runtime.nn.rope import read_rope, read_ropes

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LAYOUTS = {
    "new": {"rope_parameters": {**LLAMA3, "rope_theta": 5000.0}},
    "old": {"rope_scaling": LLAMA3, "rope_theta": 5000.0},
    "plain": {"rope_theta": 5000.0},
    "nothing": {},
}


def read(config, scaling=None, theta=None):
    changed = merge(config, rope_overrides(config, scaling, theta))
    return read_rope(Keys(changed.get("text_config", changed)), 16, 10000.0)


@pytest.mark.row("F-239", "F-240")
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("nested", [False, True])
def test_options_win(layout, nested):
    config = LAYOUTS[layout]
    if nested:
        config = {"text_config": config} if config else {"rope_theta": 1.0, "text_config": {"rope_theta": 2.0}}
    assert read(config, theta=777.0).theta == 777.0
    rule = read(config, scaling={"rope_type": "dynamic", "factor": 2.0})
    assert (rule.kind, rule.parameters["factor"]) == ("dynamic", 2.0)
    assert "low_freq_factor" not in rule.parameters
    assert rule.theta == {"nothing": 2.0 if nested else 10000.0}.get(layout, 5000.0)
    older = read(config, scaling={"type": "linear", "factor": 4.0}, theta=9.0)
    assert (older.kind, older.theta) == ("linear", 9.0)


def test_nothing_is_changed_without_options():
    assert rope_overrides(LAYOUTS["new"], None, None) == {}
    assert rope_overrides(LAYOUTS["new"], {}, None) == {}


def test_rules_by_kind_of_layer_change_where_there_is_no_window():
    kinds = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    config = {"rope_parameters": kinds}
    full, local = read_ropes(Keys(merge(config, rope_overrides(config, None, 500.0))), 16, 1.0)
    assert (full.theta, local.theta) == (500.0, 1e4)
    scaling = {"rope_type": "linear", "factor": 2.0}
    full, local = read_ropes(Keys(merge(config, rope_overrides(config, scaling, None))), 16, 1.0)
    assert (full.kind, full.theta, full.parameters["factor"]) == ("linear", 1e6, 2.0)
    assert (local.kind, local.theta) == ("default", 1e4)


@pytest.mark.parametrize("text", [{"hidden_size": 8}, {"rope_theta": 2.0}])
def test_a_language_model_without_a_rope_rule_takes_that_of_the_options(text):
    """Published wrappers leave out what equals the default."""
    assert read({"text_config": text}, theta=777.0).theta == 777.0
    assert read({"text_config": text}, scaling={"rope_type": "linear", "factor": 2.0}).kind == "linear"


WHOLE = {"architectures": ["A"], "image_token_id": 3, "text_config": {"hidden_size": 8, "eps": 0.1, "dtype": "half"}}


@pytest.mark.parametrize(
    ("given", "placed", "strange"),
    [
        ({"eps": 0.2}, {"text_config": {"eps": 0.2}}, {}),
        ({"eps": 0.2, "text_config": {"eps": 0.3}}, {"text_config": {"eps": 0.3}}, {}),
        ({"rope_scaling": {"factor": 2.0}}, {"text_config": {"rope_scaling": {"factor": 2.0}}}, {}),
        ({"image_token_id": 4, "dtype": "float"}, {"image_token_id": 4, "dtype": "float"}, {}),
        ({"window": 9}, {"window": 9}, {"window": 9}),
        ({"text_config": None, "eps": 0.2}, {"text_config": None, "eps": 0.2}, {"eps": 0.2}),
    ],
)
def test_keys_of_the_language_model_may_stand_outside_of_its_object(given, placed, strange):
    assert place_overrides(WHOLE, given) == placed
    assert strange_overrides(WHOLE, given) == strange


def test_keys_of_a_plain_checkpoint_stay_where_they_are():
    assert place_overrides({"eps": 0.1}, {"eps": 0.2, "rope_theta": 5.0}) == {"eps": 0.2, "rope_theta": 5.0}
