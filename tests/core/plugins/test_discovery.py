"""Discovery: good plugins load whatever the others do, and every fault is named."""

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from lsv.offers import ModelOffer, PolicyOffer
from lsv.plugins import ESSENTIAL, Plugins, load, manifest
from lsv.settings import Setting
from lsv_base.errors import ConfigError, PluginError
from lsv_testing.plugins import Finding, check_folder, check_plugin, write_distribution

GOOD = """
from lsv import hookimpl
from lsv.offers import PolicyOffer
from lsv.settings import Setting
api = 2

@hookimpl
def lsv_policies():
    yield PolicyOffer("shortest", "nowhere:Nothing")

@hookimpl
def lsv_settings():
    yield Setting(name="good.depth", type="int", default=3)
"""
START = "from lsv import hookimpl\nfrom lsv.offers import *\napi = 2\n"

Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a plugin on the path as if it were installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    modules: list[str] = []

    def write(name: str, source: str | None, **changes: str) -> str:
        modules.append(write_distribution(tmp_path, name, source, **changes))
        monkeypatch.syspath_prepend(str(tmp_path))
        return modules[-1]

    yield write
    for module in modules:
        sys.modules.pop(module, None)


def reason(plugins: Plugins, name: str) -> str:
    assert name not in plugins.names
    return plugins.broken[name].reason


@pytest.mark.row("F-853")
def test_a_variable_of_others_chooses_among_foreign_plugins_alone(install: Install) -> None:
    install("good", GOOD)
    assert {"core", "cpu", "good"} <= set(load().names)
    assert {"core", "cpu"} <= set(load(extra=()).names)
    assert "good" not in load(extra=()).names
    assert "good" not in load(extra=("somebody_elses",)).names, "what is not installed here is for another program"
    assert "good" in load(extra=("good", "somebody_elses")).names
    assert "good" in load(["good"], extra=()).names, "who names it wants it"


def test_a_plugin_is_found(install: Install) -> None:
    module = install("good", GOOD, version="2.5")
    plugins = load()
    found = plugins.loaded["good"]
    assert (found.name, found.distribution, found.version, found.module) == ("good", "lsv-good", "2.5", module)
    assert not plugins.broken
    assert plugins.catalog.find(PolicyOffer, "shortest").load == "nowhere:Nothing"
    assert "good.depth" in [setting.name for setting in plugins.settings()]


def test_the_metadata_of_a_distribution_is_read_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it may have many plugins, as lsv itself has."""
    install("good", GOOD)
    read: list[str] = []
    plain = PathDistribution.read_text

    def watched(distribution: PathDistribution, name: str) -> str | None:
        if name == "METADATA":
            read.append(str(distribution.locate_file("")))
        return plain(distribution, name)

    monkeypatch.setattr(PathDistribution, "read_text", watched)
    loaded = load().loaded.values()
    assert len(read) == len({plugin.distribution for plugin in loaded}) < len(loaded)


def test_what_is_installed_is_read_once_for_a_search_path(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("good", GOOD)
    names = load().names
    with monkeypatch.context() as patch:
        patch.setattr("lsv.plugins.entry_points", lambda **_: pytest.fail("read again"))
        assert load().names == names
    install("another", GOOD.replace("good.", "another."))
    assert {*load().names} == {*names, "another"}


def test_plugins_load_in_the_order_of_their_names(install: Install) -> None:
    for name in ("zz", "aa"):
        install(name, GOOD.replace("good.", f"{name}."))
    assert list(load().names) == sorted(load().names)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_thing\n", ["ModuleNotFoundError", "no_such_thing"]),
        ("raise RuntimeError('boom')\n", ["RuntimeError: boom"]),
        ("raise SystemExit(3)\n", ["tried to end the process"]),
        ("def broken(:\n", ["SyntaxError"]),
        ("from lsv import hookimpl\n", ["no api number", "api = 2"]),
        ("api = 3\n", ["api 3", "api 2"]),
        ("api = 1\n", ["api 1", "api 2", "from lsv to lsv_runtime"]),
        ("api = True\n", ["api True"]),
        ("api = '1'\n", ["api '1'"]),
        (START + "@hookimpl\ndef lsv_modles(): ...\n", ["lsv_modles", "did you mean lsv_models", "line "]),
        (START + "@hookimpl\ndef models(): ...\n", ["models", "not a hook"]),
        (START + "def lsv_models(): ...\n", ["lsv_models", "no @lsv.hookimpl mark"]),
        (START + "def lsv_modles(): ...\n", ["lsv_modles", "did you mean lsv_models"]),
        (START + "lsv_models = ()\n", ["lsv_models", "must be a function"]),
        (START + "@hookimpl\ndef lsv_models(config): ...\n", ["lsv_models takes no arguments", "config"]),
        (START + "@hookimpl\ndef lsv_check_config(cfg): ...\n", ["takes (config)", "not cfg"]),
        (START + "@hookimpl(wrapper=True)\ndef lsv_models(): yield\n", ["wrappers are not supported"]),
        (START + "hookspecs = object\n", ["specifies no hook"]),
    ],
)
def test_a_broken_plugin_is_a_record(install: Install, source: str, words: list[str]) -> None:
    install("bad", source)
    install("good", GOOD)
    plugins = load()
    for word in words:
        assert word in reason(plugins, "bad")
    assert plugins.broken["bad"].traceback.startswith("Traceback")
    assert plugins.catalog.find(PolicyOffer, "shortest")


def test_stale_metadata(install: Install) -> None:
    install("gone", None)
    broken = load().broken["gone"]
    assert broken.stale
    assert "stale" in broken.reason
    assert "lsv_gone_manifest" in broken.reason


def test_a_missing_dependency_is_not_stale(install: Install) -> None:
    install("needy", "import lsv_needy_manifest_parts\n")
    assert not load().broken["needy"].stale


def test_one_name_from_two_distributions(install: Install) -> None:
    install("first", GOOD, plugin="same")
    install("second", GOOD, plugin="same")
    plugins = load()
    assert "lsv-first, lsv-second" in reason(plugins, "same")


def test_only_the_named_ones(install: Install) -> None:
    install("good", GOOD)
    install("other", GOOD.replace("good.", "other."))
    assert set(load(names=["good"]).names) == {"good", *ESSENTIAL}
    assert "good" not in load(without=["good"]).names
    assert "other" in load(without=["good"]).names
    assert set(load(names=()).names) <= set(ESSENTIAL)


def test_the_names_load_the_same_plugins_again(install: Install) -> None:
    install("good", GOOD)
    install("bad", "raise RuntimeError\n")
    assert load(names=load().names).names == load().names


def test_unknown_names(install: Install) -> None:
    install("good", GOOD)
    with pytest.raises(PluginError, match="no plugin called 'goood' is installed; did you mean good"):
        load(names=["goood"])
    with pytest.raises(PluginError, match="did you mean good"):
        load(without=["goood"])


def test_a_broken_plugin_asked_for_by_name(install: Install) -> None:
    install("bad", "raise RuntimeError('boom')\n")
    with pytest.raises(PluginError, match=r"bad \(lsv-bad 1\.0\): RuntimeError: boom") as caught:
        load(names=["bad"])
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "bad" not in load(without=["bad"]).broken


def test_an_offer_a_broken_plugin_may_have_had(install: Install) -> None:
    install("bad", "raise RuntimeError('boom')\n")
    with pytest.raises(PluginError, match=r"no model 'moe'.*broken plugin: bad .*boom") as caught:
        load().catalog.find(ModelOffer, "moe")
    assert isinstance(caught.value.__cause__, RuntimeError)


SPECS = """
import pluggy
spec = pluggy.HookspecMarker("lsv")
@spec
def lsv_zoo_opened(zoo): ...
"""


def test_a_plugin_adds_a_hook_that_an_earlier_one_implements(install: Install, tmp_path: Path) -> None:
    (tmp_path / "lsv_zoo_specs.py").write_text(SPECS)
    install("zoo", "import lsv_zoo_specs as hookspecs\napi = 2\n")
    install("ape", START + "@hookimpl\ndef lsv_zoo_opened(zoo): return zoo + 1\n")
    plugins = load()
    assert not plugins.broken
    assert plugins.call("lsv_zoo_opened", zoo=1) == [2]


def test_a_hook_of_a_plugin_that_is_not_there(install: Install) -> None:
    install("ape", START + "@hookimpl\ndef lsv_zoo_opened(zoo): ...\n")
    install("bee", START + "@hookimpl(optionalhook=True)\ndef lsv_zoo_opened(zoo): ...\n")
    plugins = load()
    assert "lsv_zoo_opened" in reason(plugins, "ape")
    assert "bee" in plugins.names


def test_a_hook_that_exists_already(install: Install, tmp_path: Path) -> None:
    (tmp_path / "lsv_zoo_clashing.py").write_text(SPECS.replace("lsv_zoo_opened(zoo)", "lsv_models()"))
    install("zoo", "import lsv_zoo_clashing as hookspecs\napi = 2\n")
    assert "lsv_models, which exists already" in reason(load(), "zoo")


def test_events_reach_everybody(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    install("ant", START + "@hookimpl\ndef lsv_check_config(config): yield config\n")
    install("bad", START + "@hookimpl\ndef lsv_check_config(config): raise RuntimeError('boom')\n")
    install("bee", START + "@hookimpl\ndef lsv_check_config(): return ['b']\n")
    install("cow", START + "@hookimpl\ndef lsv_check_config(config):\n    yield 1\n    raise RuntimeError('late')\n")
    plugins = load(["ant", "bad", "bee", "cow"])
    assert plugins.call("lsv_check_config", config="c") == [("c",), ["b"]]
    assert "plugin bad failed in lsv_check_config" in caplog.text
    assert "plugin cow failed in lsv_check_config" in caplog.text


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("Setting(name='depth')", "must be called bad.<name>"),
        ("Setting(name='cpu.depth')", "must be called bad.<name>"),
        ("Setting(name='bad.De-pth')", "snake_case"),
        ("Setting(name='bad.names', type='list')", "can't be list"),
        ("Setting(name='bad.x', short=('-tp',))", "both claim the name -tp"),
        ("42", "must yield Setting"),
    ],
)
def test_settings_that_break_the_rules(install: Install, setting: str, word: str) -> None:
    body = f"from lsv.settings import Setting\n@hookimpl\ndef lsv_settings(): yield {setting}\n"
    install("bad", START + body)
    install("good", GOOD)
    plugins = load()
    names = [found.name for found in plugins.settings()]
    assert "good.depth" in names
    assert not [name for name in names if name.startswith("bad.")]
    assert word in plugins.broken["bad"].reason


def test_a_dash_in_a_plugins_name() -> None:
    manifest.check_setting(Setting(name="my_format.group_size"), "my-format")


def test_require_after_the_hooks_were_read(install: Install) -> None:
    install("bad", START + "@hookimpl\ndef lsv_settings(): raise RuntimeError('boom')\n")
    plugins = load(names=["bad"])
    plugins.settings()
    with pytest.raises(PluginError, match="boom"):
        plugins.require(["bad"])


def findings(install: Install, source: str) -> dict[str, Finding]:
    return {finding.what: finding for finding in check_plugin("mine", install("mine", source))}


def test_conformance_of_a_good_plugin(install: Install) -> None:
    source = GOOD.replace("good.", "mine.").replace("nowhere:Nothing", "lsv.scheduler.policy:Fcfs")
    assert [finding.passed for finding in findings(install, source).values()] == [True, True, True]


@pytest.mark.parametrize(
    ("source", "what", "word"),
    [
        ("api = 3\n", "manifest lsv_mine_manifest", "api 3"),
        (START + "@hookimpl\ndef lsv_policies(): yield 1\n", "manifest lsv_mine_manifest", "must yield PolicyOffer"),
        (GOOD, "manifest lsv_mine_manifest", "must be called mine.<name>"),
        (
            START + "@hookimpl\ndef lsv_policies(): yield PolicyOffer('a', 'no:x')\n",
            "scheduling policy a loads",
            "no:x",
        ),
        (
            START + "@hookimpl\ndef lsv_policies():\n    for i in 'ab': yield PolicyOffer('a', 'json:loads')\n",
            "scheduling policy a",
            "twice",
        ),
        (
            START + "@hookimpl\ndef lsv_policies(): yield PolicyOffer('a', 'json:JSONDecoder')\n",
            "scheduling policy a has the form of one",
            "has no key, budget",
        ),
        (
            START
            + "from lsv.offers import AttentionOffer\n"
            + "@hookimpl\ndef lsv_attention(): yield AttentionOffer('a', 'json:JSONDecoder', (16,))\n",
            "attention backend a has the form of one",
            "has no supports, page_bytes, allocate, plan, attend, write",
        ),
        (
            START
            + "from lsv.offers import CheckpointOffer\n"
            + "@hookimpl\ndef lsv_checkpoints(): yield CheckpointOffer('a', lambda path: True, 'json:loads')\n",
            "checkpoint format a loads",
            "recognises an empty folder",
        ),
        (
            START
            + "from lsv.offers import ProcessorOffer\n@hookimpl\ndef lsv_processors():\n"
            + "    yield ProcessorOffer('a', ('A',), ('image',), 'json:loads', place='nowhere:x')\n",
            "processor a loads",
            "can't be loaded from nowhere:x",
        ),
        (
            START
            + "from lsv.offers import ProcessorOffer\n@hookimpl\ndef lsv_processors():\n"
            + "    yield ProcessorOffer('a', ('A',), ('smell',), 'json:loads', place='json:loads')\n",
            "manifest lsv_mine_manifest",
            "modalities must be",
        ),
        (
            START + "@hookimpl\ndef lsv_model_aliases(): yield ModelAlias('a', lambda: '/nowhere')\n",
            "model alias a has its files",
            "no config.json",
        ),
    ],
)
def test_conformance_names_what_is_wrong(install: Install, source: str, what: str, word: str) -> None:
    found = findings(install, source)[what]
    assert found.passed is False
    assert word in found.detail


def test_a_platform_without_its_device_is_not_checked(install: Install) -> None:
    offer = "PlatformOffer('p', 'json:loads', probe=lambda: ())"
    found = findings(install, START + f"@hookimpl\ndef lsv_platforms(): yield {offer}\n")
    assert found["platform p keeps what platforms promise"].passed is None


def test_folders_that_hold_no_plugin(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not a distribution: pyproject\.toml can't be read"):
        list(check_folder(tmp_path))
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    with pytest.raises(ConfigError, match="registers no plugin"):
        list(check_folder(tmp_path))


def test_metadata_of_others_may_be_damaged(install: Install, tmp_path: Path) -> None:
    install("bare", GOOD.replace("good.", "bare."))
    (tmp_path / "lsv_bare-1.0.dist-info" / "METADATA").unlink()
    install("good", GOOD)
    plugins = load()
    assert {"good", "bare"} <= set(plugins.names)
