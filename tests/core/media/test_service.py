"""Which plugin's media service a model gets, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from lsv.media.options import MediaOptions
from lsv.media.service import open_offline, open_service
from lsv.offers import MediaOffer, ModelOffer, ProcessorOffer
from lsv_base.errors import ConfigError, PluginError
from lsv_testing.catalog import catalog_of
from lsv_testing.fakes.client import fake_config

SEEING = fake_config(architecture="Seeing")
"""A family's processor takes its media."""
DECLARED = fake_config(architecture="Declared")
"""Its model says that it takes media, and no processor does."""
TEXT = fake_config(architecture="Text")


class Families:
    @staticmethod
    def lsv_models() -> Iterable[ModelOffer]:
        yield ModelOffer("declared", ("Declared",), "nothing:Model", modalities=("text", "image"))
        yield ModelOffer("text", ("Text",), "nothing:Model")

    @staticmethod
    def lsv_processors() -> Iterable[ProcessorOffer]:
        yield ProcessorOffer("seeing", ("Seeing",), ("image",), load="nothing:Processor", place="nothing:Placement")


class Decoding:
    @staticmethod
    def lsv_media() -> Iterable[MediaOffer]:
        yield MediaOffer("here", load=f"{__name__}:made", offline=f"{__name__}:made_offline")


def made(*arguments: Any) -> tuple[Any, ...]:
    return ("service", *arguments)


def made_offline(*arguments: Any) -> tuple[Any, ...]:
    return ("offline", *arguments)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offers name this module, wherever tests are imported from."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules[made.__module__])


def test_a_service_is_made_by_the_plugin_that_offers_it() -> None:
    catalog, options = catalog_of(Families, Decoding), MediaOptions(folder="/x")
    service: Any = open_service(SEEING, catalog, options)
    assert service == ("service", SEEING, catalog, options)
    offline: Any = open_offline(SEEING, catalog, options)
    assert offline == ("offline", SEEING, catalog, options)


def test_a_model_of_text_gets_none() -> None:
    for manifests in ((Families, Decoding), (Families,)):
        assert open_service(TEXT, catalog_of(*manifests), MediaOptions()) is None
        with pytest.raises(ConfigError, match="Text takes text only: no plugin offers a processor for it"):
            open_offline(TEXT, catalog_of(*manifests), MediaOptions())
    assert open_service(DECLARED, catalog_of(Families, Decoding), MediaOptions()) is None


@pytest.mark.parametrize("config", [SEEING, DECLARED], ids=lambda config: config.architecture)
@pytest.mark.parametrize("opened", [open_service, open_offline])
def test_without_a_service_the_error_names_the_plugin(opened: Any, config: Any) -> None:
    with pytest.raises(ConfigError, match=f"{config.architecture} takes media, .* load the plugin multimodal"):
        opened(config, catalog_of(Families), MediaOptions())


def test_two_services_are_one_too_many() -> None:
    with pytest.raises(PluginError, match=r"several media services, here of .* and here of"):
        open_service(SEEING, catalog_of(Families, Decoding, Decoding), MediaOptions())


def test_a_service_that_can_not_be_imported_is_named() -> None:
    class Broken:
        @staticmethod
        def lsv_media() -> Iterable[MediaOffer]:
            yield MediaOffer("broken", load="json:nothing", offline="json:neither")

    catalog = catalog_of(Families, Broken)
    with pytest.raises(PluginError, match=r"media service 'broken' .* can't be loaded from json:nothing: Attribute"):
        open_service(SEEING, catalog, MediaOptions())
    with pytest.raises(PluginError, match="can't be loaded from json:neither"):
        open_offline(SEEING, catalog, MediaOptions())


def test_without_media_nothing_that_decodes_is_imported() -> None:
    script = (
        "import sys, lsv.cli.serve, lsv_offline.llm\n"
        "from lsv import plugins\n"
        "from lsv.media.options import MediaOptions\n"
        "from lsv.media.service import open_service\n"
        "from lsv_testing.fakes.client import fake_config\n"
        "assert open_service(fake_config(architecture='None'), plugins.load().catalog, MediaOptions()) is None\n"
        "families = 'lsv_multimodal.families'\n"
        "light = ('lsv_multimodal', 'lsv_multimodal.plugin', families, f'{families}.offers')\n"
        "heavy = ('torch', 'transformers', 'PIL', 'av', 'httpcore2')\n"
        "print([m for m in sys.modules if m in heavy or m.startswith('lsv_multimodal') and m not in light])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
