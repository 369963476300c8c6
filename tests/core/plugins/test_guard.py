"""Functions of plugins that raise, hang or lie: the culprit is named, and nobody else is disturbed."""

from __future__ import annotations

import threading
import time
from types import ModuleType
from typing import Any

import pytest

from lsv import hookimpl
from lsv.config import Choices
from lsv.offers import CheckpointOffer, KernelOffer, ModelOffer, OpSpec, PlatformOffer
from lsv.plugins import guard, load, manifest
from lsv.plugins.guarded_policy import GuardedPolicy
from lsv.plugins.typed import check_types
from lsv.resolve.hardware import choose_platform
from lsv.scheduler.budget import StepCosts
from lsv.scheduler.policy import Priority
from lsv.settings import Setting
from lsv_base.errors import ConfigError
from lsv_testing.plugins import plugins_of, write_distribution


def plugin(hook: str, *offers: Any) -> ModuleType:
    module = ModuleType("made_up")
    module.api = 2  # type: ignore[attr-defined]
    setattr(module, hook, hookimpl(lambda: offers))
    return module


def fail(*_: Any) -> Any:
    raise ZeroDivisionError("oops")


def test_a_probe_that_raises_is_no_platform(caplog: pytest.LogCaptureFixture):
    plugins = plugins_of(bad=plugin("lsv_platforms", PlatformOffer("bad", "x:y", fail, rank=9)))
    with pytest.raises(ConfigError, match="no platform plugin finds a device"):
        choose_platform("auto", False, {}, plugins.catalog, Choices())
    assert "ZeroDivisionError: oops" in str(plugins.broken["bad"])
    assert "plugin bad: probe failed" in caplog.text


def test_a_probe_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(guard, "SLOW_SECONDS", 0.01)
    monkeypatch.setattr(guard, "PROBE_SECONDS", 0.2)
    forever = threading.Event()
    plugins = plugins_of(slow=plugin("lsv_platforms", PlatformOffer("slow", "x:y", lambda: forever.wait() and ())))
    (offer,) = plugins.catalog.offers(PlatformOffer)
    assert offer.probe() == ()
    forever.set()
    assert "plugin slow: probe has been at work" in caplog.text
    assert "no answer within 0.2 seconds" in str(plugins.broken["slow"])


def test_a_probe_that_ends_the_process_does_not():
    plugins = plugins_of(gone=plugin("lsv_platforms", PlatformOffer("gone", "x:y", lambda: exit(3))))
    assert plugins.catalog.offers(PlatformOffer)[0].probe() == ()
    assert "tried to end the process" in str(plugins.broken["gone"])


def test_questions_that_raise_are_answered_no():
    offers = (
        plugin("lsv_checkpoints", CheckpointOffer("zip", fail, "x:y")),
        plugin("lsv_kernels", KernelOffer("norm", "*", "x:y", fail, unwanted=fail)),
    )
    plugins = plugins_of(zip=offers[0], fast=offers[1])
    assert plugins.catalog.offers(CheckpointOffer)[0].recognises("folder") is False
    (kernel,) = plugins.catalog.offers(KernelOffer)
    assert "its plugin failed: ZeroDivisionError" in kernel.supports(OpSpec("norm", "float32"))
    assert set(plugins.broken) == {"zip", "fast"}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (ModelOffer(3, ("A",), "x:y"), "ModelOffer.name must be str, got 3"),
        (ModelOffer("m", "LlamaForCausalLM", "x:y"), r"architectures must be tuple\[str, ...\], got 'Llama"),
        (ModelOffer("m", ("A",), None), "load must be str, got None"),
        (ModelOffer("m", ("A",), "x:y", unstable={"float16": 3}), "unstable must be"),
        (KernelOffer("norm", "*", "x:y", None), "supports must be"),
        (KernelOffer("norm", "*", "x:y", fail, rank=True), "rank must be int, got True"),
        (Setting(name="bits.x", type="complex"), "type must be Literal"),
        (Setting(name="bits.x", low="1"), "low must be"),
    ],
)
def test_types_are_checked_when_offers_are_collected(record: Any, message: str):
    with pytest.raises(TypeError, match=message):
        check_types(record)


def test_a_plugin_with_an_offer_of_wrong_types_is_broken():
    plugins = plugins_of(bad=plugin("lsv_models", ModelOffer("m", "LlamaForCausalLM", "x:y")))
    assert plugins.catalog.offers(ModelOffer) == ()
    assert "architectures must be" in str(plugins.broken["bad"])


def test_what_a_manifest_prints_goes_to_stderr(tmp_path, monkeypatch, capsys):
    (tmp_path / "noisy_manifest.py").write_text("api = 2\nprint('hello')\n")
    monkeypatch.syspath_prepend(tmp_path)
    manifest.read("noisy_manifest")
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "hello\n")


@pytest.mark.parametrize("watched", [True, False])
def test_a_manifest_that_takes_long_is_named(tmp_path, monkeypatch, caplog, watched):
    monkeypatch.setattr(guard, "SLOW_SECONDS", 0.01)
    write_distribution(tmp_path, f"slow{watched}", "import time\napi = 2\ntime.sleep(0.2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    load([f"slow{watched}"], watched=watched)
    told = f"plugin manifest lsv_slow{watched}_manifest (lsv-slow{watched}) has been at work" in caplog.text
    assert told is watched


def test_who_takes_long_is_named_once(monkeypatch, caplog):
    monkeypatch.setattr(guard, "SLOW_SECONDS", 0.05)
    with guard.watching() as begin:
        begin("the first")
        begin("the second")
        time.sleep(0.3)
    assert caplog.messages[-1:] == ["the second has been at work for 0.05 seconds"]
    assert len(set(caplog.messages)) == len(caplog.messages)


def test_a_policy_that_raises_is_told_once_and_set_aside(caplog):
    class Broken(Priority):
        def key(self, group, now):
            raise ValueError("oops")

    policy, costs = GuardedPolicy(Broken(), "mine", "bits"), StepCosts(128, 64)
    assert [policy.key(None, 0.0) for _ in range(3)] == [(), (), ()]
    assert policy.budget(1, costs) == 64
    assert caplog.text.count("scheduling policy mine of plugin bits failed in key") == 1


def test_problems_of_a_configuration_name_the_plugin_that_finds_them():
    module = plugin("lsv_check_config")
    module.lsv_check_config = hookimpl(lambda config: ["I do not like it"])
    assert plugins_of(picky=module).ask("lsv_check_config", config=None) == [("picky", ["I do not like it"])]
