"""The options of adapters: how many there may be, and which are served from the start."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lsv.adapters.peft import check_name, read_config
from lsv.config import AdapterOptions
from lsv.offers import ModelAlias
from lsv.resolve.files import hub_of
from lsv.resolve.hub import fetch, is_name
from lsv.settings import Settings
from lsv_base.errors import CheckpointError, ConfigError

_Shipped = Mapping[str, Callable[[], str]]
"""What gives the folder of an adapter that ships inside a package, by its name."""
_DTYPES = {"half": "float16", "float": "float32"}


def adapter_options(settings: Settings, aliases: Iterable[ModelAlias] = ()) -> AdapterOptions | None:
    """None where adapters are not enabled. Raises ``ConfigError`` for options that contradict each other, and
    ``CheckpointError`` for an adapter that is not there or not served.
    """
    if not settings["enable_lora"]:
        for name in ("lora_modules", "lora_resolver_cache_dir"):
            if settings[name]:
                raise ConfigError(f"{name} needs --enable-lora", param=name)
        return None
    slots, most = settings["max_loras"], settings["max_num_seqs"]
    host = settings["max_cpu_loras"] or max(slots, most)
    if host < slots:
        raise ConfigError(f"max_cpu_loras={host} must be at least max_loras={slots}", param="max_cpu_loras")
    dtype = settings["lora_dtype"]
    shipped = {f"{alias.name}:{name}": locate for alias in aliases for name, locate in alias.adapters.items()}
    options = AdapterOptions(
        slots=slots,
        max_rank=settings["max_lora_rank"],
        host=host,
        dtype=_DTYPES.get(dtype, dtype),
        modules=tuple(_module(text, settings, shipped) for text in settings["lora_modules"] or ()),
        folder=_folder(settings["lora_resolver_cache_dir"]),
        confinement=settings["confinement"],
    )
    names = [name for name, _ in options.modules]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"lora_modules names {name} twice", param="lora_modules")
    return options


def _module(text: str, settings: Settings, shipped: _Shipped) -> tuple[str, str]:
    """The name and the folder of ``name=path`` or ``{"name": …, "path": …}``."""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError as cause:
            raise ConfigError(f"lora_modules: {text!r:.100} is not JSON: {cause}", param="lora_modules") from None
        others = found.keys() - {"name", "path", "base_model_name"}
        if others:
            raise ConfigError(f"lora_modules: unknown key {sorted(others)[0]!r}", param="lora_modules")
        name, path = found.get("name"), found.get("path")
    else:
        name, _, path = text.partition("=")
    if not (isinstance(name, str) and name and isinstance(path, str) and path):
        raise ConfigError(
            f'lora_modules must be name=path or {{"name": …, "path": …}}, got {text!r:.100}', param="lora_modules"
        )
    check_name(name)
    return name, str(_locate(path, settings, shipped))


def untargeted_layers(settings: Settings) -> tuple[str, ...]:
    """The layers that the adapter of ``--qlora-adapter-name-or-path`` does not change, as ``--quantization-ignore``
    names them. Raises ``CheckpointError`` where there is no such adapter.
    """
    name = "qlora_adapter_name_or_path"
    if settings[name] is None:
        return ()
    targets = read_config(_locate(settings[name], settings, {}, name)).targets
    if targets is None:
        return ()
    meant = f"(?:.*\\.)?(?:{'|'.join(map(re.escape, targets))})" if isinstance(targets, tuple) else f"(?:{targets})"
    return (f"re:(?!{meant}$)",)


def _locate(path: str, settings: Settings, shipped: _Shipped, param: str = "lora_modules") -> Path:
    """The folder of an adapter, which may have to be fetched; it is looked into, so that nothing is loaded in vain."""
    folder = Path(shipped[path]() if path in shipped else path).expanduser()
    if not folder.is_dir():
        if not is_name(path):
            known = f"; with models come {', '.join(shipped)}" if shipped else ""
            raise CheckpointError(f"there is no folder {path} with an adapter{known}", param=param)
        folder = fetch(path, hub_of(settings, None))
    read_config(folder)
    return folder.resolve()


def _folder(path: str | None) -> str | None:
    if path is None:
        return None
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"lora_resolver_cache_dir: there is no folder {path}", param="lora_resolver_cache_dir")
    return str(folder.resolve())
