"""The default sampling parameters of requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsv.config import Choices
from lsv.plugins.catalog import Catalog
from lsv.request.params import RECOMMENDABLE, SamplingParams
from lsv.request.pooling import Pooler
from lsv.resolve.files import hub_of
from lsv.resolve.hub import Hub
from lsv.resolve.locate import locate_model
from lsv.resolve.recommended import read_origin, read_recommended
from lsv.settings import Settings
from lsv_base.errors import BadRequest, ConfigError


def recommendations(
    settings: Settings, model: Path, tokenizer: Path, pooler: Pooler, catalog: Catalog, choices: Choices
) -> dict[str, Any]:
    """The folder that recommends sampling parameters, and the overrides.

    The model's folder goes before a separate tokenizer's folder. Raises ``ConfigError``.
    """
    folder = generation_folder(settings["generation_config"], catalog, hub_of(settings, None))
    if folder is None and tokenizer != model and read_recommended(model):
        folder = str(model)
    overrides = sampling_overrides(settings["override_generation_config"])
    if pooler.task == "generate":
        note_sampling(str(tokenizer) if folder is None else folder, overrides, choices)
    return {"generation": folder, "sampling": overrides}


def generation_folder(asked: str, catalog: Catalog, hub: Hub) -> str | None:
    """The folder of the recommended parameters: None for the model's own folder, empty for none."""
    if asked in ("auto", "vllm"):
        return None if asked == "auto" else ""
    return str(locate_model(asked, catalog, hub))


def sampling_overrides(given: Any) -> Mapping[str, Any]:
    """The parameters of ``--override-generation-config``, checked like a request's."""
    if not isinstance(given, Mapping) or not set(given) <= set(RECOMMENDABLE):
        raise ConfigError(
            f"override_generation_config must be a JSON object with any of {', '.join(RECOMMENDABLE)}, "
            f"got {given!r:.100}",
            param="override_generation_config",
        )
    try:
        SamplingParams(**given)
    except BadRequest as cause:
        raise ConfigError(f"override_generation_config: {cause.message}", param="override_generation_config") from None
    return dict(given)


def note_sampling(folder: str, overrides: Mapping[str, Any], choices: Choices) -> None:
    """Log the default sampling parameters, if any are recommended or overridden.

    ``folder`` has the generation_config.json in use; empty for none.
    """
    recommended = read_recommended(folder)
    shown = {**recommended, **overrides}
    if not shown:
        return
    sources = [read_origin(folder)] if recommended.keys() - overrides.keys() else []
    if overrides:
        sources.append("set by override_generation_config")
    value = " ".join(f"{name}={shown[name]:g}" for name in shown)
    choices.note("default_sampling", value, f"{', '.join(sources)}; requests may override them")
