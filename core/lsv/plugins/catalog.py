"""Offers by kind and name, and the plugin each one came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from lsv.offers import (
    AttentionOffer,
    CheckpointOffer,
    CommandOffer,
    DrafterOffer,
    ExecutorOffer,
    FamilyOffer,
    FrontendOffer,
    GrammarOffer,
    KernelOffer,
    KVTransportOffer,
    LogitsProcessorOffer,
    MediaOffer,
    ModelAlias,
    ModelOffer,
    PartOffer,
    PlacerOffer,
    PlatformOffer,
    PolicyOffer,
    ProcessorOffer,
    QuantizerOffer,
    ReasoningParserOffer,
    ToolParserOffer,
    load_object,
)
from lsv.plugins.guard import guarded
from lsv.plugins.typed import check_types
from lsv_base.errors import ConfigError, PluginError, suggestion

T = TypeVar("T", bound=msgspec.Struct)


class Kind(NamedTuple):
    """The hook that declares offers of a kind, and what users call one of them."""

    hook: str
    noun: str


KINDS: dict[type[msgspec.Struct], Kind] = {
    PlatformOffer: Kind("lsv_platforms", "platform"),
    AttentionOffer: Kind("lsv_attention", "attention backend"),
    KernelOffer: Kind("lsv_kernels", "kernel"),
    QuantizerOffer: Kind("lsv_quantizers", "quantiser"),
    ModelOffer: Kind("lsv_models", "model"),
    FamilyOffer: Kind("lsv_families", "table of families"),
    ModelAlias: Kind("lsv_model_aliases", "model alias"),
    ProcessorOffer: Kind("lsv_processors", "processor"),
    MediaOffer: Kind("lsv_media", "media service"),
    LogitsProcessorOffer: Kind("lsv_logits_processors", "logits processor"),
    ToolParserOffer: Kind("lsv_tool_parsers", "tool parser"),
    ReasoningParserOffer: Kind("lsv_reasoning_parsers", "reasoning parser"),
    GrammarOffer: Kind("lsv_grammars", "grammar back end"),
    DrafterOffer: Kind("lsv_drafters", "drafter"),
    PolicyOffer: Kind("lsv_policies", "scheduling policy"),
    ExecutorOffer: Kind("lsv_executors", "executor"),
    PartOffer: Kind("lsv_parts", "part of the engine"),
    PlacerOffer: Kind("lsv_placers", "data-parallel back end"),
    KVTransportOffer: Kind("lsv_kv_transports", "KV transport"),
    CheckpointOffer: Kind("lsv_checkpoints", "checkpoint format"),
    CommandOffer: Kind("lsv_commands", "command"),
    FrontendOffer: Kind("lsv_frontends", "frontend"),
}


class Hooks(Protocol):
    """What a catalog needs of the loaded plugins."""

    def implementations(self, hook: str) -> Iterable[tuple[str, Any]]:
        """(plugin, its implementation of the hook), in plugin order."""
        ...

    def watching(self) -> AbstractContextManager[Callable[[str], None]]:
        """Watch plugins at work: call the yielded function with a name at the start of each turn."""
        ...

    def blame(self, plugin: str, error: Exception) -> None:
        """Remember that a plugin failed."""
        ...

    def is_own(self, plugin: str) -> bool:
        """Whether a plugin comes with lsv itself."""
        ...

    def suspects(self) -> Sequence[str]:
        """The broken plugins, one description each."""
        ...

    def first_cause(self) -> Exception | None:
        """The error of the first broken plugin."""
        ...


@dataclass(frozen=True, slots=True)
class Provided:
    """A thing a plugin declared."""

    thing: Any
    plugin: str


class Catalog:
    """Everything the loaded plugins offer. Hooks are called once per kind, when it is first asked for.

    An implementation that raises or yields something of another type makes its plugin a broken one;
    what other plugins offer is not affected.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._collected: dict[str, tuple[Provided, ...]] = {}

    def offers(self, kind: type[T]) -> tuple[T, ...]:
        """All offers of a kind, in plugin order."""
        return tuple(provided.thing for provided in self.declared(KINDS[kind].hook, kind))

    def find(self, kind: type[T], name: str) -> T:
        """The offer called ``name``.

        Raises ``ConfigError`` when nobody offers it, ``PluginError`` when two plugins do or when nobody does
        while a plugin that may have offered it is broken.
        """
        provided = self.declared(KINDS[kind].hook, kind)
        found = [entry for entry in provided if entry.thing.name == name]
        if not found:
            raise self._unknown(KINDS[kind].noun, name, [entry.thing.name for entry in provided])
        _refuse_ambiguous(f"{KINDS[kind].noun} {name!r}", found)
        return found[0].thing  # type: ignore[no-any-return]

    def architecture(self, name: str) -> ModelOffer:
        """The model that serves a checkpoint's architecture; failing that, the fallback for all architectures."""
        provided = self.declared(KINDS[ModelOffer].hook, ModelOffer)
        found = [entry for entry in provided if name in entry.thing.architectures]
        found = found or [entry for entry in provided if entry.thing.fallback]
        if not found:
            known = [architecture for entry in provided for architecture in entry.thing.architectures]
            raise self._unknown("model architecture", name, known)
        _refuse_ambiguous(f"model architecture {name!r}", found)
        return found[0].thing  # type: ignore[no-any-return]

    def provider(self, offer: object) -> str:
        """The plugin that made this very offer."""
        for entry in self._everything():
            if entry.thing is offer:
                return entry.plugin
        raise KeyError(f"{offer!r} did not come from this catalog")

    def is_own(self, offer: object) -> bool:
        """Whether an offer comes with lsv itself, going by the distribution of its plugin."""
        return self._hooks.is_own(self.provider(offer))

    def load(self, offer: Any, part: str = "load") -> Any:
        """The object an offer names, under ``part`` of it where it names several.

        Raises ``PluginError`` with plugin, offer and cause when it can't be imported.
        """
        try:
            return load_object(getattr(offer, part))
        except Exception as cause:
            kind = KINDS[type(offer)].noun if type(offer) in KINDS else "offer"
            called = getattr(offer, "name", None) or getattr(offer, "op", "")
            raise PluginError(
                f"{kind} {called!r} of plugin {self.provider(offer)} can't be loaded from {getattr(offer, part)}: "
                f"{type(cause).__name__}: {cause}"
            ) from cause

    def declared(self, hook: str, kind: type[msgspec.Struct]) -> tuple[Provided, ...]:
        """What all implementations of a declaring hook yield, with the plugin each came from."""
        if hook not in self._collected:
            self._collected[hook] = tuple(self._collect(hook, kind))
        return self._collected[hook]

    def _collect(self, hook: str, kind: type[msgspec.Struct]) -> Iterator[Provided]:
        with self._hooks.watching() as begin:
            for plugin, implementation in self._hooks.implementations(hook):
                begin(f"plugin {plugin}: {hook}")
                try:
                    things = tuple(implementation())
                    for thing in things:
                        if not isinstance(thing, kind):
                            raise TypeError(f"{hook} must yield {kind.__name__}, got {thing!r}")
                        check_types(thing)
                except Exception as error:
                    self._hooks.blame(plugin, error)
                    continue
                blame = partial(self._hooks.blame, plugin)
                yield from (Provided(guarded(thing, plugin, blame), plugin) for thing in things)

    def _everything(self) -> Iterator[Provided]:
        for collected in self._collected.values():
            yield from collected

    def _unknown(self, noun: str, name: str, known: Sequence[str]) -> ConfigError | PluginError:
        names = ", ".join(dict.fromkeys(known)) or "none"
        message = f"there is no {noun} {name!r}{suggestion(name, known)} (known: {names})"
        suspects = self._hooks.suspects()
        if not suspects:
            return ConfigError(message)
        error = PluginError(f"{message}; it may belong to a broken plugin: {'; '.join(suspects)}")
        error.__cause__ = self._hooks.first_cause()
        return error


def _refuse_ambiguous(what: str, found: Sequence[Provided]) -> None:
    if len(found) > 1:
        plugins = " and ".join(entry.plugin for entry in found)
        raise PluginError(f"{what} is offered more than once, by {plugins}: leave one out with --no-plugin NAME")
