"""Conformance of a plugin: its manifest, its offers, and the suite that goes with each of them."""

from __future__ import annotations

import inspect
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lsv.offers import (
    AttentionOffer,
    CheckpointOffer,
    CommandOffer,
    ExecutorOffer,
    FrontendOffer,
    LogitsProcessorOffer,
    MediaOffer,
    ModelAlias,
    ModelOffer,
    PartOffer,
    PlacerOffer,
    PlatformOffer,
    PolicyOffer,
    QuantizerOffer,
)
from lsv.plugins import GROUP, Origin, Plugins, manifest
from lsv.plugins.catalog import KINDS, Catalog
from lsv_base.errors import ConfigError, PluginError

_ONLINE_TOLERANCE = 0.3
"""Largest relative error of an online quantiser that still counts as one; a broken one is off by more than 1."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check; ``passed`` None means it could not be made here, and ``detail`` why."""

    what: str
    passed: bool | None
    detail: str = ""


def plugins_of(**manifests: Any) -> Plugins:
    """Plugins made of manifest modules by name, instead of the installed ones; raises what is wrong with them."""
    plugins = Plugins()
    for name, module in manifests.items():
        plugins.add(Origin(name, getattr(module, "__name__", ""), name), module)
    return plugins


def write_distribution(folder: Path, name: str, source: str | None, *, version: str = "1.0", plugin: str = "") -> str:
    """Make a distribution ``lsv-<name>`` look installed in ``folder``, its manifest's text being ``source``.

    ``plugin`` is the entry point's name if it is another; ``source`` None leaves the manifest out. Returns the name of
    the manifest's module.
    """
    module = f"lsv_{name.replace('-', '_')}_manifest"
    info = folder / f"lsv_{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: lsv-{name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{plugin or name} = {module}\n")
    if source is not None:
        (folder / f"{module}.py").write_text(source)
    return module


def check_folder(folder: Path) -> Iterator[Finding]:
    """Check every plugin of a distribution that is not installed. Its folder is put on ``sys.path``."""
    points = _entry_points(folder)
    for source in (folder, folder / "src"):
        sys.path.insert(0, str(source))
    for name, module in points.items():
        yield from check_plugin(name, module)


def check_plugin(name: str, module: str) -> Iterator[Finding]:
    """Check one plugin: the rules of manifests, then each offer with the suite for its kind."""
    plugins = Plugins()
    try:
        plugins.add(Origin(name, module), manifest.read(module))
        plugins.settings()
        for kind, (hook, _) in KINDS.items():
            plugins.catalog.declared(hook, kind)
    except Exception as error:
        yield Finding(f"manifest {module}", False, f"{type(error).__name__}: {error}")
        return
    if plugins.broken:
        yield Finding(f"manifest {module}", False, plugins.broken[name].reason)
        return
    yield Finding(f"manifest {module}", True)
    for kind in KINDS:
        yield from _check_offers(kind, plugins.catalog)


def _check_offers(kind: type, catalog: Catalog) -> Iterator[Finding]:
    seen: set[str] = set()
    offer: Any
    for offer in catalog.offers(kind):
        name = getattr(offer, "name", None)
        what = f"{KINDS[kind].noun} {name or offer.op}"
        if name in seen:
            yield Finding(what, False, "the plugin offers this name twice")
            continue
        if name is not None:
            seen.add(name)
        if isinstance(offer, ModelAlias):
            yield _attempt(f"{what} has its files", partial(_check_alias, offer))
            continue
        loads = _attempt(f"{what} loads", partial(_check_loads, offer, catalog))
        yield loads
        if loads.passed and kind in _SHAPES:
            shape = _attempt(f"{what} has the form of one", partial(_SHAPES[kind], catalog.load(offer), offer))
            yield shape
            if not shape.passed:
                continue
        if loads.passed and kind in _SUITES:
            promise, check = _SUITES[kind]
            yield _attempt(f"{what} {promise}", partial(check, offer, catalog))


def _entry_points(folder: Path) -> Mapping[str, str]:
    file = folder / "pyproject.toml"
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        raise ConfigError(f"{folder} is not a distribution: pyproject.toml can't be read ({cause})") from cause
    points: Mapping[str, str] = project.get("project", {}).get("entry-points", {}).get(GROUP, {})
    if not points:
        raise ConfigError(f"{file} registers no plugin: add [project.entry-points.{GROUP}]")
    return points


class _Skip(Exception):
    """A check can't be made here; the message says why."""


def _attempt(what: str, check: Callable[[], object]) -> Finding:
    try:
        check()
    except _Skip as reason:
        return Finding(what, None, str(reason))
    except (AssertionError, PluginError) as failure:
        return Finding(what, False, str(failure))
    except Exception as failure:
        return Finding(what, False, f"{type(failure).__name__}: {failure}")
    return Finding(what, True)


_PARTS = ("load", "place", "transcribe", "offline", "prepare", "emulation", "arguments")
"""The fields of offers that name objects."""


def _check_loads(offer: Any, catalog: Catalog) -> None:
    """Everything an offer names can be imported, and what it asks about a folder it can be asked."""
    for part in _PARTS:
        if getattr(offer, part, None):
            catalog.load(offer, part)
    if isinstance(offer, CheckpointOffer):
        with tempfile.TemporaryDirectory() as folder:
            assert not offer.recognises(folder), "it recognises an empty folder"


def _keeps_to(*methods: str) -> Callable[[Any, Any], None]:
    """A check that a class an offer names has these methods; what makes one is taken at its word."""

    def check(found: Any, offer: Any) -> None:
        missing = [name for name in methods if isinstance(found, type) and not callable(getattr(found, name, None))]
        assert not missing, f"{offer.load} has no {', '.join(missing)}"
        assert callable(found), f"{offer.load} must be a class or make one, got {found!r}"

    return check


def _has(*methods: str) -> Callable[[Any, Any], None]:
    """A check that what an offer names makes something with these methods."""

    def check(found: Any, offer: Any) -> None:
        made = found()
        missing = [name for name in methods if not callable(getattr(made, name, None))]
        assert not missing, f"{offer.load} has no {', '.join(missing)}"

    return check


def _takes(count: int) -> Callable[[Any, Any], None]:
    """A check that what an offer names can be called with so many arguments."""

    def check(found: Any, offer: Any) -> None:
        try:
            inspect.signature(found).bind(*range(count))
        except (TypeError, ValueError) as cause:
            raise AssertionError(f"{offer.load} must take {count} arguments: {cause}") from None

    return check


_SHAPES: Mapping[type, Callable[[Any, Any], None]] = {
    AttentionOffer: _keeps_to("supports", "page_bytes", "allocate", "plan", "attend", "write"),
    LogitsProcessorOffer: _takes(3),
    PolicyOffer: _has("key", "budget"),
    CheckpointOffer: _takes(1),
    CommandOffer: _takes(2),
    ExecutorOffer: _takes(1),
    PartOffer: _takes(1),
    PlacerOffer: _takes(2),
    FrontendOffer: _takes(2),
    MediaOffer: _takes(3),
}
"""Kind → a check of what its offers name, before any suite."""


def _check_attention(offer: AttentionOffer, catalog: Catalog) -> None:
    where = ", ".join(offer.platforms) or "a device of its platform"
    raise _Skip(f"it is checked on {where}: call lsv_testing.attention.check_attention in the plugin's own tests")


def _check_alias(alias: ModelAlias) -> None:
    folder = Path(alias.locate())
    assert (folder / "config.json").is_file(), f"{folder} has no config.json"
    for name, locate in alias.adapters.items():
        assert (Path(locate()) / "adapter_config.json").is_file(), f"{alias.name}:{name} has no adapter_config.json"
    if alias.held_out is not None:
        questions, text = alias.held_out(1, 0)
        assert len(questions) == 1, f"{alias.name}: held_out gives {len(questions)} questions, one was asked for"
        assert text, f"{alias.name}: held_out gives no text"


def _check_model(offer: ModelOffer, catalog: Catalog) -> None:
    """The first architecture that transformers knows, on a tiny checkpoint."""
    family = next(filter(None, map(_family, offer.architectures)), None)
    if family is None:
        raise _Skip("transformers knows none of its architectures; compare it in the plugin's own tests")
    from lsv_testing.model import check_model, engine_config
    from lsv_testing.tiny import tiny

    with tempfile.TemporaryDirectory() as folder:
        check_model(engine_config(tiny(family, folder), offer.name), catalog)


def _family(architecture: str) -> str | None:
    """The ``model_type`` of an architecture in transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as architectures

    return next((family for family, name in architectures.items() if name == architecture), None)


def _check_quantizer(offer: QuantizerOffer, catalog: Catalog) -> None:
    if not offer.online:
        raise _Skip("it reads a format of its own; call lsv_testing.quantizer.check_quantizer with an encoder")
    from lsv_testing.quantizer import check_quantizer

    make = catalog.load(offer)
    check_quantizer(lambda: make({}), lambda w: {"weight": w}, tolerance=_ONLINE_TOLERANCE)


def _check_platform(offer: PlatformOffer, catalog: Catalog) -> None:
    if not offer.probe():
        raise _Skip("there is no such device on this machine")
    from lsv_testing.platform import check_platform

    check_platform(offer)


_SUITES: Mapping[type, tuple[str, Callable[[Any, Catalog], None]]] = {
    ModelOffer: ("computes what transformers does", _check_model),
    QuantizerOffer: ("computes what the plain layer does", _check_quantizer),
    PlatformOffer: ("keeps what platforms promise", _check_platform),
    AttentionOffer: ("computes what attention is", _check_attention),
}
"""Kind → (what its suite shows, the suite)."""
