"""The rope options win over whatever a checkpoint says, in either layout."""

from __future__ import annotations

import pytest

from lsv.nn.keys import Keys
from lsv.nn.rope import read_rope
from lsv.resolve.locate import merge
from lsv.resolve.overrides import rope_overrides

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
