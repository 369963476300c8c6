"""Options that set nothing: what is accepted of them everywhere, and what is refused everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsv import plugins
from lsv.errors import ConfigError
from lsv.llm import read_options
from lsv.settings import Declared, Given, Setting, Settings, gather, options
from lsv.settings.flags import parse
from lsv.settings.neutral import NEUTRAL, neutral, problems

ROWS = {setting.name: setting for setting in NEUTRAL}
ACCEPTED = [
    ("task", "generate"), ("task", "embed"), ("preemption_mode", "recompute"), ("swap_space", 0), ("swap_space", "0"),
    ("cpu_offload_gb", 0.0), ("trust_remote_code", True), ("trust_remote_code", False),
]  # fmt: skip
REFUSED = [
    ("task", "classify", "generate or embed"), ("preemption_mode", "swap", "recompute"), ("swap_space", 4, "0"),
    ("swap_space", -1, "0"), ("swap_space", "nan", "0"), ("cpu_offload_gb", 10, "0"),
]  # fmt: skip


def by_flag(name: str, value: Any) -> Settings:
    declared = Declared(options.CORE)
    return gather(declared, parse([f"--{name.replace('_', '-')}={value}"], declared).given)


def by_file(name: str, value: Any, folder: Path) -> Settings:
    file = folder / "x.yaml"
    file.write_text(f"{name}: {value}\n")
    return gather(Declared(options.CORE), {}, file=str(file))


def by_variable(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv(f"LSV_{name.upper()}", str(value))
    try:
        return gather(Declared(options.CORE), {})
    finally:
        monkeypatch.delenv(f"LSV_{name.upper()}")


@pytest.mark.parametrize(("name", "value"), ACCEPTED)
def test_a_neutral_value_is_accepted_everywhere(
    name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_flag(name, value)
    by_file(name, value, tmp_path)
    by_variable(name, value, monkeypatch)
    read_options({name: value}, plugins.load(()))


@pytest.mark.parametrize(("name", "value", "expected"), REFUSED)
def test_another_value_is_refused_everywhere_with_what_to_use_instead(
    name: str, value: Any, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = (
        ("flag --", lambda: by_flag(name, value)),
        ("file ", lambda: by_file(name, value, tmp_path)),
        ("LSV_", lambda: by_variable(name, value, monkeypatch)),
        ("argument ", lambda: read_options({name: value}, plugins.load(()))),
    )
    for source, read in ways:
        with pytest.raises(ConfigError) as caught:
            read()
        message = caught.value.message
        assert message.startswith(source)
        assert f"{name.replace('_', '-')} must be {expected}, got " in message
        assert message.endswith(f": {ROWS[name].instead}")
        assert caught.value.param == name


def test_all_rows_are_tried_here() -> None:
    assert {name for name, _ in ACCEPTED} == set(ROWS)


@pytest.mark.parametrize("setting", NEUTRAL, ids=lambda setting: setting.name)
def test_a_row_says_what_it_is(setting: Setting) -> None:
    assert setting.instead in setting.help
    assert setting.neutral
    assert setting.default == setting.neutral[0]


def test_a_row_of_a_platform_is_judged_on_that_platform_alone() -> None:
    row = neutral("toy.wheels", "round", "", instead="a toy rolls", env=("TOY_WHEELS",), platform="toy")
    declared = Declared([row, Setting(name="toy.colour")])
    settings = gather(declared, {"toy.wheels": Given("square", "flag --toy-wheels")})
    assert list(problems(settings, "car")) == []
    assert list(problems(settings, "toy")) == ["flag --toy-wheels: toy-wheels must be round, got 'square': a toy rolls"]
    assert settings.plugin_options() == {"toy.colour": None}, "what sets nothing is not handed on"
    for value in ("round", ""):
        assert list(problems(gather(declared, {"toy.wheels": Given(value, "x")}), "toy")) == []


def test_a_row_may_accept_nothing() -> None:
    row = neutral("layers", type="int", instead="all are computed")
    assert row.help == "refused: all are computed"
    with pytest.raises(ConfigError, match="x: layers must be left out, got 1: all are computed"):
        gather(Declared([row]), {"layers": Given("1", "x")})
