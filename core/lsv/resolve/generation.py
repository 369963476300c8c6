"""Which sampling parameters requests get that leave them out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsv.config import Choices
from lsv.errors import BadRequest, ConfigError
from lsv.plugins.catalog import Catalog
from lsv.request.params import RECOMMENDABLE, SamplingParams
from lsv.request.pooling import Pooler
from lsv.resolve.files import hub_of
from lsv.resolve.hub import Hub
from lsv.resolve.locate import locate_model
from lsv.resolve.recommended import read_origin, read_recommended
from lsv.settings import Settings


def recommendations(
    settings: Settings, model: Path, tokenizer: Path, pooler: Pooler, catalog: Catalog, choices: Choices
) -> dict[str, Any]:
    """Where sampling parameters are recommended, and what is laid over them.

    A tokenizer of another folder has no say where the model's own recommends something. Raises ``ConfigError``.
    """
    folder = generation_folder(settings["generation_config"], catalog, hub_of(settings, None))
    if folder is None and tokenizer != model and read_recommended(model):
        folder = str(model)
    overrides = sampling_overrides(settings["override_generation_config"])
    if pooler.task == "generate":
        note_sampling(str(tokenizer) if folder is None else folder, overrides, choices)
    return {"generation": folder, "sampling": overrides}


def generation_folder(asked: str, catalog: Catalog, hub: Hub) -> str | None:
    """Where sampling parameters are recommended: None is the model's own folder, empty is nowhere."""
    if asked in ("auto", "vllm"):
        return None if asked == "auto" else ""
    return str(locate_model(asked, catalog, hub))


def sampling_overrides(given: Any) -> Mapping[str, Any]:
    """What ``--override-generation-config`` says, checked as a request's parameters are."""
    if not isinstance(given, Mapping) or not set(given) <= set(RECOMMENDABLE):
        raise ConfigError(
            f"override_generation_config must hold any of {', '.join(RECOMMENDABLE)} in JSON, got {given!r:.100}",
            param="override_generation_config",
        )
    try:
        SamplingParams(**given)
    except BadRequest as cause:
        raise ConfigError(f"override_generation_config: {cause.message}", param="override_generation_config") from None
    return dict(given)


def note_sampling(folder: str, overrides: Mapping[str, Any], choices: Choices) -> None:
    """Log how requests are sampled that leave parameters out; silent where nothing is recommended.

    ``folder`` has the generation_config.json that counts, empty for none.
    """
    recommended = read_recommended(folder)
    shown = {**recommended, **overrides}
    if not shown:
        return
    sources = [read_origin(folder)] if recommended.keys() - overrides.keys() else []
    if overrides:
        sources.append("set by override_generation_config")
    value = " ".join(f"{name}={shown[name]:g}" for name in shown)
    choices.note("default_sampling", value, f"{', '.join(sources)}; requests may say otherwise")
