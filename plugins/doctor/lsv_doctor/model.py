"""What a server would do with a model, found without its weights."""

from __future__ import annotations

from lsv.offers import FrontendOffer, load_object
from lsv.plugins import Plugins
from lsv.resolve import resolve
from lsv.settings import Settings
from lsv_doctor.findings import Line


def explain_model(settings: Settings, plugins: Plugins) -> list[Line]:
    """The findings of frontends about the model in ``settings``. Raises ``ConfigError`` and ``CheckpointError``."""
    config = resolve(settings, plugins)
    lines = [Line("model", f"{config.served_names[0]}: {config.architecture} on {config.platform}")]
    for offer in plugins.catalog.offers(FrontendOffer):
        if offer.explain is not None:
            lines += [Line(what, found) for what, found in load_object(offer.explain)(config, settings)]
    return lines
