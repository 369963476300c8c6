"""Which sampling parameters a server recommends to requests that bring none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lsv.errors import BadRequest, ConfigError
from lsv.plugins.catalog import Catalog
from lsv.request.params import RECOMMENDABLE, SamplingParams
from lsv.resolve.hub import Hub
from lsv.resolve.locate import locate_model


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
