"""The catalog: offers by name, each with its plugin, and errors that say who is to blame."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from lsv import hookimpl
from lsv.offers import KernelOffer, ModelOffer, PolicyOffer
from lsv.plugins import Plugins
from lsv_base.errors import ConfigError, PluginError
from lsv_testing.plugins import plugins_of


def plugin(**hooks: Any) -> ModuleType:
    """A manifest whose hooks give these values, or raise them."""
    module = ModuleType("made_up")
    module.api = 2  # type: ignore[attr-defined]
    for name, value in hooks.items():
        setattr(module, name, hookimpl(giving(value)))
    return module


def giving(value: Any) -> Callable[[], Any]:
    def implementation() -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return implementation


def policies(*names: str) -> ModuleType:
    return plugin(lsv_policies=[PolicyOffer(name, f"json:{name}") for name in names])


def models(*offers: ModelOffer) -> Plugins:
    return plugins_of(models=plugin(lsv_models=offers))


def test_offers_know_their_plugins() -> None:
    catalog = plugins_of(one=policies("a", "b"), two=policies("c")).catalog
    found = catalog.offers(PolicyOffer)
    assert [offer.name for offer in found] == ["a", "b", "c"]
    assert [catalog.provider(offer) for offer in found] == ["one", "one", "two"]


def test_equal_offers_of_two_plugins_keep_their_providers() -> None:
    catalog = plugins_of(one=policies("a"), two=policies("a")).catalog
    first, second = catalog.offers(PolicyOffer)
    assert first == second
    assert (catalog.provider(first), catalog.provider(second)) == ("one", "two")


def test_hooks_are_called_once_per_kind() -> None:
    calls: list[int] = []

    def lsv_policies() -> list[PolicyOffer]:
        calls.append(1)
        return [PolicyOffer("a", "json:loads")]

    module = ModuleType("counting")
    module.api, module.lsv_policies = 2, hookimpl(lsv_policies)  # type: ignore[attr-defined]
    catalog = plugins_of(counting=module).catalog
    catalog.offers(PolicyOffer)
    catalog.find(PolicyOffer, "a")
    assert calls == [1]


def test_unknown_names() -> None:
    catalog = plugins_of(one=policies("fcfs", "priority")).catalog
    with pytest.raises(
        ConfigError, match=r"no scheduling policy 'prioritiy'; did you mean priority\? \(known: fcfs, priority\)"
    ):
        catalog.find(PolicyOffer, "prioritiy")


def test_duplicate_names_matter_when_asked_for() -> None:
    catalog = plugins_of(one=policies("a", "b"), two=policies("a")).catalog
    assert catalog.find(PolicyOffer, "b").name == "b"
    with pytest.raises(PluginError, match=r"scheduling policy 'a' is offered more than once, by one and two"):
        catalog.find(PolicyOffer, "a")


def test_kernels_have_no_names_to_clash() -> None:
    kernel = KernelOffer("linear", "*", "json:loads", supports=lambda spec: None)
    catalog = plugins_of(one=plugin(lsv_kernels=[kernel, kernel])).catalog
    assert len(catalog.offers(KernelOffer)) == 2


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (RuntimeError("boom"), "RuntimeError: boom"),
        ([PolicyOffer("x", "json:x"), "nonsense"], "must yield PolicyOffer, got 'nonsense'"),
        (None, "TypeError"),
    ],
)
def test_a_failing_hook_marks_its_plugin_only(answer: Any, word: str) -> None:
    plugins = plugins_of(bad=plugin(lsv_policies=answer), good=policies("a"))
    assert [offer.name for offer in plugins.catalog.offers(PolicyOffer)] == ["a"]
    assert word in plugins.broken["bad"].reason
    assert "good" not in plugins.broken
    with pytest.raises(PluginError, match="broken plugin: bad"):
        plugins.catalog.find(PolicyOffer, "x")


def test_loading() -> None:
    import json

    catalog = plugins_of(one=policies("loads", "nothing")).catalog
    assert catalog.load(catalog.find(PolicyOffer, "loads")) is json.loads
    with pytest.raises(
        PluginError, match=r"policy 'nothing' of plugin one can't be loaded from json:nothing"
    ) as caught:
        catalog.load(catalog.find(PolicyOffer, "nothing"))
    assert isinstance(caught.value.__cause__, AttributeError)


LLAMA = ModelOffer("llama", ("LlamaForCausalLM",), "m:Llama")
QWEN = ModelOffer("qwen", ("QwenForCausalLM", "Qwen2ForCausalLM"), "m:Qwen")
ANY = ModelOffer("any", (), "m:Any", fallback=True)


def test_architectures() -> None:
    catalog = models(ANY, LLAMA, QWEN).catalog
    assert catalog.architecture("Qwen2ForCausalLM") is QWEN
    assert catalog.architecture("PhiForCausalLM") is ANY


def test_architecture_without_fallback() -> None:
    with pytest.raises(ConfigError, match=r"'Qwen3ForCausalLM'; did you mean Qwen2?ForCausalLM"):
        models(LLAMA, QWEN).catalog.architecture("Qwen3ForCausalLM")


def test_architecture_offered_twice() -> None:
    catalog = plugins_of(one=plugin(lsv_models=[LLAMA]), two=plugin(lsv_models=[LLAMA, QWEN])).catalog
    assert catalog.architecture("QwenForCausalLM").name == "qwen"
    with pytest.raises(PluginError, match="'LlamaForCausalLM' is offered more than once, by one and two"):
        catalog.architecture("LlamaForCausalLM")
